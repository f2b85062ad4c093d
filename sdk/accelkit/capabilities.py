"""The capabilities of an accelerator. This module imports neither torch nor other modules of accelkit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Self, get_args

Support = Literal["native", "emulated", "none", "undeclared"]

CAPABILITY_KEYS: Mapping[str, str] = {
    "streams": "work on different streams can run concurrently",
    "events": "events can be recorded in a stream and waited for",
    "memory_statistics": "the statistics memory.allocated.bytes and memory.peak.bytes of a process",
    "memory_limit": "an allocation that does not fit raises torch.OutOfMemoryError, and freed memory can be allocated again",
    "pinned_memory": "page-locked host memory, from which copies can be asynchronous",
    "random_state": "one generator per device, whose state can be read and set",
    "generator_offset": "generators with a seed and an offset, as on CUDA, so that DTensor can draw each shard separately",
    "numbered_devices": "devices have indices, and an index that does not exist is an error",
    "process_group": "collectives with the accelerator's process_group_backend",
    "profiler": "torch.profiler records the kernels and copies of the device, and their times",
    "profiler_memory": "torch.profiler records the memory of the device that is allocated and freed",
    "compile": "torch.compile with the accelerator's compile_backend",
    "graphs": "work can be captured once and replayed",
    "fp8": "scaled matrix multiplication with float8 operands",
    "transformer_engine": "NVIDIA's transformer-engine package supports the device",
    "subnormals": "subnormal float32 numbers are not flushed to zero",
    "autocast_float32_list": "torch.autocast computes operators that need the range (softmax, losses, norms, exp, log, pow) in float32",
    "deterministic": "with torch.use_deterministic_algorithms, results are bitwise equal, or an error is raised",
}
"""The capabilities that an accelerator may declare, in addition to ``dtype.<name>`` (storage and arithmetic) and ``autocast.<name>``."""


def check_capability_keys(keys: Iterable[str]) -> None:
    """Check that every key is in CAPABILITY_KEYS or has the form ``<prefix>.<name>``, as in ``dtype.float32``.

    Any prefix and any name are accepted. A plugin's own keys are prefixed with its name, as in ``acme.x``.

    Raises:
        TypeError: If ``keys`` is a string, or holds anything other than strings.
        ValueError: If a key is neither in CAPABILITY_KEYS nor of this form. The message suggests a similar key, or lists the valid keys.
    """
    if isinstance(keys, str):
        raise TypeError(f"{keys!r} is a string; expected a tuple of capabilities such as ({keys!r},)")
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"a capability must be a string, got {key!r:.80} ({type(key).__name__})")
        prefix, dot, rest = key.partition(".")
        if key in CAPABILITY_KEYS or (dot and prefix and rest):
            continue
        import difflib  # imported only for the error, because importing accelkit must be quick

        near = difflib.get_close_matches(key, CAPABILITY_KEYS, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"valid ones are dtype.<name>, autocast.<name>, {', '.join(CAPABILITY_KEYS)}."
        raise ValueError(f"unknown capability {key!r}: {meant} A plugin's own capability is prefixed with its name, as in 'acme.{key}'")


class Capabilities(Mapping[str, Support]):
    """An immutable mapping from capabilities to the support that an accelerator declares.

    Keys are ``dtype.<name>`` (storage and arithmetic, as in ``dtype.bfloat16``), ``autocast.<name>`` and the keys of CAPABILITY_KEYS. A
    plugin's own keys are prefixed with its name, as in ``acme.sparse_cores``. A value is ``native`` if the device supports the capability
    directly, ``emulated`` if software makes up for what the device lacks, and ``none`` if the device does not support the capability.

    Looking up a key that was not declared, even an unknown one, returns ``undeclared`` and raises no KeyError. ``in``, ``len`` and
    iteration leave such keys out.

    >>> capabilities = Capabilities.declare(native=["streams", "dtype.float32"], none=["fp8"])
    >>> capabilities["streams"], capabilities["fp8"], capabilities["graphs"]
    ('native', 'none', 'undeclared')
    """

    __slots__ = ("_declared",)

    def __init__(self, declared: Mapping[str, Support] | None = None) -> None:
        self._declared: dict[str, Support] = dict(declared or {})
        check_capability_keys(self._declared)
        for key, support in self._declared.items():
            if support not in get_args(Support):
                raise ValueError(f"the capability {key!r} must be one of {', '.join(get_args(Support))}, got {support!r}")

    @classmethod
    def declare(cls, *, native: Iterable[str] = (), emulated: Iterable[str] = (), none: Iterable[str] = ()) -> Self:
        """Return capabilities from lists of keys. The value of each key is the name of the argument that lists the key.

        Raises:
            TypeError: If an argument is a string, or holds anything other than strings.
            ValueError: If a key is unknown or is listed twice.
        """
        declared: dict[str, Support] = {}
        for support, keys in (("native", native), ("emulated", emulated), ("none", none)):
            if isinstance(keys, str):
                raise TypeError(f"{support}={keys!r} is a string; expected a list of capabilities such as {support}=[{keys!r}]")
            for key in keys:
                if key in declared:
                    raise ValueError(f"the capability {key!r} is declared as both {declared[key]} and {support}")
                declared[key] = support  # type: ignore[assignment]
        return cls(declared)

    def updated(self, declared: Mapping[str, Support]) -> Self:
        """Return a copy that also contains the entries of ``declared``. If a key already has a value, the new value replaces it.

        Raises:
            TypeError: If a key is not a string.
            ValueError: If a key is unknown, or if a value is not a ``Support``.
        """
        return type(self)(self._declared | dict(declared))

    def can(self, key: str) -> bool:
        """Return whether the capability is declared as native or emulated."""
        return self[key] in ("native", "emulated")

    def __getitem__(self, key: str) -> Support:
        return self._declared.get(key, "undeclared")

    def __contains__(self, key: object) -> bool:
        return key in self._declared

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._declared))

    def __len__(self) -> int:
        return len(self._declared)

    def __repr__(self) -> str:
        return f"Capabilities({dict(self)!r})"
