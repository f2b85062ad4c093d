"""The environment variables of the fake XPU.

This module reads all of them except FAKE_XPU_CACHE_DIR, which CppLibrary reads. The module does not import torch.

================================  =====================================================================================================
``FAKE_XPU_DEVICES``              number of devices on the machine; 2 by default
``FAKE_XPU_VISIBLE_DEVICES``      visible devices, such as ``1,0`` (then device 1 is ``fake_xpu:0``); all by default
``FAKE_XPU_MEMORY``               memory of each device, in bytes or with a unit, such as ``512MiB``; 16 GiB by default
``FAKE_XPU_PROTECT``              ``1``: accessing device memory outside kernels and copies causes a segmentation fault; 0 by default
``FAKE_XPU_FAULT``                faults to inject, see ``Faults.parse``; none by default
``FAKE_XPU_CACHE_DIR``            folder of the compiled library; a folder in the user's cache by default
================================  =====================================================================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_DEVICES = 64
DEFAULT_MEMORY = 16 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FIELDS = {
    "oom": "oom_at",
    "lost": "lost_at",
    "nan": "nan_operator",
    "wrong": "wrong_operator",
    "slow_copy": "copy_milliseconds",
    "slow_first_call": "first_call_milliseconds",
    "recording": "recording",
}
_RECORDINGS = ("no_kernels", "twice", "microseconds", "early", "caller", "device", "stale", "no_frees")
_FAULT_FORMS = (
    "use oom@N (allocation N), lost@N (kernel N), nan@OPERATOR, wrong@OPERATOR, slow_copy@MILLISECONDS, "
    "slow_first_call@MILLISECONDS or recording@HOW, separated by commas"
)


class SettingsError(ValueError):
    """The error for an invalid value of an environment variable or of the argument of ``torch.fake_xpu.fault``.

    ``hint`` says how to correct the value.
    """

    def __init__(self, variable: str, value: str, why: str, hint: str) -> None:
        super().__init__(f"{variable}={value!r}: {why}")
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults to inject.

    Attributes:
        oom_at: The number of the allocation that fails as if the device were full. 1 means the first allocation after the faults are
            injected, and 0 means none.
        lost_at: The number of the kernel during which the device is lost. This kernel and every later use of any device raise an error. 1
            means the first kernel after the faults are injected, and 0 means none.
        nan_operator: The operator, such as ``mm`` or ``add``, whose floating-point and complex results are NaN. Empty for none.
        wrong_operator: The operator whose floating-point and complex results are made wrong by adding a number to the last
            element: the largest magnitude in the result, or 1 if all elements are 0. Empty for none.
        copy_milliseconds: The additional duration of each copy, in milliseconds.
        first_call_milliseconds: The additional duration, in milliseconds, of each kernel's first call after the faults are injected, as on
            a device that compiles a kernel when it is first called.
        recording: The error in torch.profiler's recording of the device. Empty for none. The possible errors are: ``no_kernels``: the
            recording contains no kernels. ``twice``: it contains each kernel and each copy twice. ``microseconds``: the recorded duration
            of each kernel and copy is a thousandth of the true duration. ``early``: the recorded times of each kernel and copy are 5 ms too
            early. ``caller``: each kernel or copy is attributed to the operator that called the previous kernel or copy. ``device``: each
            kernel and copy is recorded on device 0. ``stale``: the recording also contains the kernels and copies of earlier recordings.
            ``no_frees``: the recording does not show when memory is freed.
    """

    oom_at: int = 0
    lost_at: int = 0
    nan_operator: str = ""
    wrong_operator: str = ""
    copy_milliseconds: int = 0
    first_call_milliseconds: int = 0
    recording: str = ""

    @classmethod
    def parse(cls, text: str, variable: str = "FAKE_XPU_FAULT") -> Faults:
        """Parse a string such as ``oom@3,lost@100,nan@mm,slow_copy@50``. An empty string means no faults.

        Each entry sets one attribute to the value after ``@``: ``oom`` sets ``oom_at``, ``lost`` sets ``lost_at``, ``nan`` sets
        ``nan_operator``, ``wrong`` sets ``wrong_operator``, ``slow_copy`` sets ``copy_milliseconds``, ``slow_first_call`` sets
        ``first_call_milliseconds``, and ``recording`` sets ``recording``. Numbers must be positive integers. Error messages name
        ``variable`` as the source of the string.

        Raises:
            SettingsError: If the string cannot be parsed.
        """
        fields: dict[str, int | str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            kind, _, value = part.partition("@")
            name = _FIELDS.get(kind)
            if name is None:
                raise SettingsError(variable, text, f"unknown fault {kind!r}", _FAULT_FORMS)
            if name in fields:
                raise SettingsError(variable, text, f"{kind} is given twice", _FAULT_FORMS)
            if kind in ("nan", "wrong"):
                if not re.fullmatch(r"\w+", value):
                    raise SettingsError(variable, text, f"{value!r} is not the name of an operator", _FAULT_FORMS)
                fields[name] = value
            elif kind == "recording":
                if value not in _RECORDINGS:
                    raise SettingsError(variable, text, f"{value!r} is not one of {', '.join(_RECORDINGS)}", _FAULT_FORMS)
                fields[name] = value
            elif not (value.isdecimal() and int(value) > 0):
                raise SettingsError(variable, text, f"{kind} needs a positive integer", _FAULT_FORMS)
            else:
                fields[name] = int(value)
        return cls(**fields)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that were read from environment variables.

    Attributes:
        devices: The visible devices, each as its index among all devices on the machine.
        memory: The memory of each device in bytes.
        is_protected: Whether device memory is inaccessible outside kernels and copies.
        faults: The faults to inject.
    """

    devices: tuple[int, ...] = (0, 1)
    memory: int = DEFAULT_MEMORY
    is_protected: bool = False
    faults: Faults = field(default_factory=Faults)


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings that the variables FAKE_XPU_* in ``environ`` specify.

    Raises:
        SettingsError: If a variable has an invalid value.
    """
    return Settings(_devices(environ), _memory(environ), _is_protected(environ), Faults.parse(environ.get("FAKE_XPU_FAULT", "")))


def _devices(environ: Mapping[str, str]) -> tuple[int, ...]:
    text = environ.get("FAKE_XPU_DEVICES", "").strip() or "2"
    if not text.isdecimal() or int(text) > MOST_DEVICES:
        raise SettingsError("FAKE_XPU_DEVICES", text, f"expected an integer from 0 to {MOST_DEVICES}", "unset it to use 2")
    existing = range(int(text))
    visible = environ.get("FAKE_XPU_VISIBLE_DEVICES")
    if visible is None:
        return tuple(existing)
    chosen: list[int] = []
    for part in (part.strip() for part in visible.split(",")):
        if not part.isdecimal() or int(part) not in existing or int(part) in chosen:
            break  # as in CUDA_VISIBLE_DEVICES, everything after an index that does not exist is hidden
        chosen.append(int(part))
    return tuple(chosen)


def _memory(environ: Mapping[str, str]) -> int:
    text = environ.get("FAKE_XPU_MEMORY", "").strip()
    if not text:
        return DEFAULT_MEMORY
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(i?B)?", text)
    if match is None or int(match[1]) == 0:
        raise SettingsError("FAKE_XPU_MEMORY", text, "expected a number of bytes", "use 1073741824 or 1GiB, for example")
    return int(match[1]) * _UNITS[match[2]]


def _is_protected(environ: Mapping[str, str]) -> bool:
    text = environ.get("FAKE_XPU_PROTECT", "").strip() or "0"
    if text not in ("0", "1"):
        raise SettingsError("FAKE_XPU_PROTECT", text, "expected 0 or 1", "unset it to use 0")
    return text == "1"
