"""Random functions that are the first in a new process to use the device's generator.

This module also runs as the child process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelkit_conformance import subprocess_checks
from accelkit_conformance.oracle.seeds import forked_rng

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SEED = 5


def _drawn(subject: Subject) -> torch.Tensor:
    """Return random numbers from the device.

    Raises:
        AssertionError: If the draw does not change the state of the device's generator.
    """
    before = subject.accelerator.get_rng_state(subject.device)
    drawn = torch.rand(7, device=subject.device).cpu()
    assert not torch.equal(before, subject.accelerator.get_rng_state(subject.device)), "a draw did not change the state of the generator"
    return drawn


def _check_seed(subject: Subject) -> None:
    first = _drawn(subject)
    with forked_rng(subject):
        pass
    second = _drawn(subject)
    assert not torch.equal(first, second), "the first draw after fork_rng repeats the numbers that were drawn before it"
    assert not torch.equal(second, _drawn(subject)), "the second draw after fork_rng repeats the numbers of the first"
    torch.manual_seed(_SEED)
    assert torch.equal(_drawn(subject), first), "the seed that was set before the device was used does not give the numbers of this seed"


def _check_state(subject: Subject) -> None:
    state = subject.accelerator.get_rng_state(subject.device)
    subject.accelerator.set_rng_state(state, subject.device)
    first, second = _drawn(subject), _drawn(subject)
    assert not torch.equal(first, second), "two draws are equal"
    subject.accelerator.set_rng_state(state, subject.device)
    assert torch.equal(_drawn(subject), first), "the state that was read before the first draw does not repeat this draw"


FIRST_CALLS: dict[str, Callable[[Subject], None]] = {"get_rng_state": _check_state, "manual_seed": _check_seed}
"""Checks by the name of the function that is called first. Each runs in a new process, in which no random number has been drawn."""


def check_first_call(subject: Subject, name: str) -> None:
    """Run ``FIRST_CALLS[name]`` in a new process.

    Raises:
        AssertionError: If the check fails, or if the process ends without an answer or exceeds its time limit.
    """
    request = subprocess_checks.about(subject.record) | {"name": name, "index": subject.devices.index(subject.device)}
    found = subprocess_checks.ask(__name__, request, 60.0 + subject.first_call_timeout)
    assert not found["failure"], f"in a new process: {found['failure']}"


def main() -> None:
    """Run the check that is named in the JSON request on standard input, and print its failure. This function runs in the child process."""
    request, record = subprocess_checks.received()
    from accelkit.discovery import loading
    from accelkit_conformance.subject import Subject

    cls = loading.load_class(record)
    accelerator = loading.instantiate(cls, record)
    accelerator.load()
    if request["name"] == "manual_seed":
        torch.manual_seed(_SEED)
    subject = Subject(record, cls)
    subject.use(accelerator, request["index"])
    try:
        FIRST_CALLS[request["name"]](subject)
        failure = ""
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    subprocess_checks.answer({"failure": failure})


if __name__ == "__main__":
    main()
