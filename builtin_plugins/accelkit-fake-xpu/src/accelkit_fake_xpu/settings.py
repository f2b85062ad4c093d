"""The environment variables, read in one place. Imports no torch.

================================  =======================================================================================
``FAKE_XPU_DEVICES``              how many devices the machine has; 2 by default
``FAKE_XPU_VISIBLE_DEVICES``      which of them this process sees, in this order: ``1,0``; all by default
``FAKE_XPU_MEMORY``               bytes of each device, also as ``512MiB`` or ``4GiB``; 16 GiB by default
``FAKE_XPU_PROTECT``              ``1``: touching device memory outside kernels and copies is a segmentation fault
``FAKE_XPU_FAULT``                faults to come, see ``Faults.parse``
``FAKE_XPU_CACHE_DIR``            where the compiled library is kept; a folder in the user's cache by default
================================  =======================================================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_DEVICES = 64
DEFAULT_MEMORY = 16 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FAULT_FORMS = "write oom@N (allocation), lost@N (kernel), nan@OPERATOR, slow_copy@MILLISECONDS, with commas between several"


class SettingsError(ValueError):
    """A variable that cannot be read. ``hint`` says what would be right."""

    def __init__(self, variable: str, value: str, why: str, hint: str) -> None:
        super().__init__(f"{variable}={value!r}: {why}")
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Faults:
    """What is to go wrong.

    Attributes:
        oom_at: The n-th allocation from now on fails as if the device were full. 0 for none.
        lost_at: The n-th kernel from now on loses the device: it, and every use of a device after it, raises. 0 for none.
        nan_operator: Floating-point results of this operator ("mm", "add") are NaN. Empty for none.
        copy_milliseconds: How much longer each copy takes.
    """

    oom_at: int = 0
    lost_at: int = 0
    nan_operator: str = ""
    copy_milliseconds: int = 0

    @classmethod
    def parse(cls, text: str, variable: str = "FAKE_XPU_FAULT") -> Faults:
        """From ``oom@3,lost@100,nan@mm,slow_copy@50``; nothing means no faults.

        Raises:
            SettingsError: If it cannot be read.
        """
        fields: dict[str, int | str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            kind, _, value = part.partition("@")
            name = {"oom": "oom_at", "lost": "lost_at", "nan": "nan_operator", "slow_copy": "copy_milliseconds"}.get(kind)
            if name is None:
                raise SettingsError(variable, text, f"there is no fault {kind!r}", _FAULT_FORMS)
            if name in fields:
                raise SettingsError(variable, text, f"{kind} is there twice", _FAULT_FORMS)
            if kind == "nan":
                if not re.fullmatch(r"\w+", value):
                    raise SettingsError(variable, text, f"{value!r} is no operator's name", _FAULT_FORMS)
                fields[name] = value
            elif not (value.isdecimal() and int(value) > 0):
                raise SettingsError(variable, text, f"{kind} needs a number of at least 1", _FAULT_FORMS)
            else:
                fields[name] = int(value)
        return cls(**fields)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for.

    Attributes:
        devices: The visible devices, each as its number on the machine.
        memory: Bytes of each device.
        is_protected: Whether device memory is closed outside kernels and copies.
        faults: What is to go wrong.
    """

    devices: tuple[int, ...] = (0, 1)
    memory: int = DEFAULT_MEMORY
    is_protected: bool = False
    faults: Faults = field(default_factory=Faults)


def read(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process.

    Raises:
        SettingsError: If a variable cannot be read.
    """
    return Settings(_devices(environ), _memory(environ), _is_protected(environ), Faults.parse(environ.get("FAKE_XPU_FAULT", "")))


def _devices(environ: Mapping[str, str]) -> tuple[int, ...]:
    text = environ.get("FAKE_XPU_DEVICES", "").strip() or "2"
    if not text.isdecimal() or int(text) > MOST_DEVICES:
        raise SettingsError("FAKE_XPU_DEVICES", text, f"a number from 0 to {MOST_DEVICES} is expected", "unset it for 2")
    there = range(int(text))
    visible = environ.get("FAKE_XPU_VISIBLE_DEVICES")
    if visible is None:
        return tuple(there)
    chosen: list[int] = []
    for part in (part.strip() for part in visible.split(",")):
        if not part.isdecimal() or int(part) not in there or int(part) in chosen:
            break  # as CUDA_VISIBLE_DEVICES: what comes after an index that is not there is not seen
        chosen.append(int(part))
    return tuple(chosen)


def _memory(environ: Mapping[str, str]) -> int:
    text = environ.get("FAKE_XPU_MEMORY", "").strip()
    if not text:
        return DEFAULT_MEMORY
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(i?B)?", text)
    if match is None or int(match[1]) == 0:
        raise SettingsError("FAKE_XPU_MEMORY", text, "a number of bytes is expected", "for example 1073741824 or 1GiB")
    return int(match[1]) * _UNITS[match[2]]


def _is_protected(environ: Mapping[str, str]) -> bool:
    text = environ.get("FAKE_XPU_PROTECT", "").strip() or "0"
    if text not in ("0", "1"):
        raise SettingsError("FAKE_XPU_PROTECT", text, "0 or 1 is expected", "unset it for 0")
    return text == "1"
