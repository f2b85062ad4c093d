"""Faults in seeding generators, in saving and restoring the random states of several devices, and in activation checkpointing."""

from __future__ import annotations

from typing import Any, ClassVar

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("random", "which device")
class StatesOfTheCurrentDevice(Broken):
    """``get_rng_state`` and ``get_rng_state_all`` of the device's module return the current device's state for every device."""

    def install(self) -> None:
        module: Any = self.device_module
        original = module.get_rng_state
        module.get_rng_state = lambda device="fake_xpu": original("fake_xpu")
        module.get_rng_state_all = lambda: [original("fake_xpu") for _ in range(module.device_count())]


@mutant("random", "which device")
class SeedsTheFirstDevice(Broken):
    """``seed_all`` seeds only device 0 instead of all devices."""

    def install(self) -> None:
        module: Any = self.device_module

        def seed_all() -> None:
            with module.device(0):
                module.seed()

        module.seed_all = seed_all


@mutant("random", "seeds that stay")
class SeedKeepsTheSeed(Broken):
    """``seed`` of the device's module does nothing."""

    def install(self) -> None:
        self.device_module.seed = lambda: None


@mutant("random", "seeds that stay")
class KeepsASpareNumber(Broken):
    """If ``randn`` or ``normal_`` draws an odd number of values, it also stores a spare value.

    The next draw of a single normally distributed value returns the spare value, even if a seed or a state has been set in between.
    """

    spare: ClassVar[list[float]] = []

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name not in ("randn", "normal_") or kwargs.get("generator") is not None or result.numel() % 2 == 0:
            return result
        if result.numel() == 1 and self.spare:
            return result.fill_(self.spare.pop())
        self.spare[:] = [-float(result.flatten()[-1])]
        return result


@mutant("random", "seeds")
class ReportsFloatSeeds(Broken):
    """``initial_seed`` returns the seed rounded to double precision."""

    def install(self) -> None:
        module: Any = self.device_module
        original = module.initial_seed
        module.initial_seed = lambda: int(float(original()))


@mutant("autograd", "recomputation")
class RestoresTheCurrentDeviceOnly(Broken):
    """Activation checkpointing saves and restores the random state of the current device only."""

    def install(self) -> None:
        from torch.utils import checkpoint

        module: Any = self.device_module
        original = checkpoint.get_device_states

        def get_device_states(*args: Any) -> Any:
            indices, states = original(*args)
            kept = [(index, state) for index, state in zip(indices, states, strict=True) if index == module.current_device()]
            return [index for index, _ in kept], [state for _, state in kept]

        checkpoint.get_device_states = get_device_states


@mutant("random", "states")
class StatesWithoutTheirOffset(Broken):
    """``set_rng_state`` of the accelerator ignores the storage offset of the state tensor."""

    def set_rng_state(self, state: Any, device: Any) -> None:
        super().set_rng_state(state.as_strided(state.shape, state.stride(), 0), device)


@mutant("random", "generators without an index")
class RefusesDevicesWithoutAnIndex(Broken):
    """``randperm`` on a device without an index raises an error if it is called with a generator."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        is_affected = name.startswith("randperm") and kwargs.get("generator") is not None
        if is_affected and kwargs["device"].index is None:
            raise RuntimeError(f"Expected a '{kwargs['device']}' generator device but found '{kwargs['generator'].device}'")
        return call()
