"""Parser for the ``devices`` argument."""

from __future__ import annotations

from collections.abc import Sequence

from accelkit.errors import DevicesError

__all__ = ["parse_devices"]


def parse_devices(devices: int | str | Sequence[int], count: int, name: str, *, counts_processes: bool = False) -> list[int]:
    """Return the device indices that ``devices`` selects, in the order given.

    Args:
        devices: The devices to use. ``n`` or ``"n"`` selects the first n devices, ``-1``, ``"-1"`` or ``"auto"`` selects all devices,
            and ``[0, 2]`` or ``"0,2"`` selects devices 0 and 2. A string with only one index needs a comma: ``"2,"`` selects device 2.
        count: The number of devices that exist.
        name: The name of the accelerator, for the errors.
        counts_processes: Whether ``n`` is a number of processes rather than a number of devices. If so, ``n`` may exceed ``count``, and
            the result is the list of the numbers 0 to n - 1, one for each process.

    Raises:
        DevicesError: If ``devices`` cannot be parsed, is empty, repeats an index, or requests a device that does not exist.
    """
    available = f"{name} has {count} device{'s' * (count != 1)}" + (f": {_spell(range(count))}" if count else "")
    forms = "write an int, -1 or 'auto' for all, a list of indices, or '0,2'"

    def refuse(why: str, hint: str = available) -> DevicesError:
        return DevicesError(f"devices={devices!r} cannot be used with {name}", why=why, hint=hint)

    if isinstance(devices, bool) or not isinstance(devices, int | str | Sequence):
        raise refuse(f"its type is {type(devices).__name__}", forms)
    wanted: int | list[int]
    if isinstance(devices, str):
        text = devices.strip().lower()
        try:
            if text == "auto":
                wanted = -1
            elif "," in text:
                wanted = [int(part) for part in text.split(",") if part.strip()]
            else:
                wanted = int(text)
        except ValueError:
            raise refuse("it is neither a number, a list of numbers nor 'auto'", forms) from None
    elif isinstance(devices, int):
        wanted = devices
    else:
        if any(isinstance(index, bool) or not isinstance(index, int) for index in devices):
            raise refuse("a list of devices must contain only ints", forms)
        wanted = list(devices)

    if isinstance(wanted, int):
        if wanted == -1:
            if count == 0:
                raise refuse("there is no device")
            return list(range(count))
        if wanted < 1:
            raise refuse("a number of devices must be at least 1, or -1 for all", available)
        if wanted > count and not counts_processes:
            raise refuse(f"{wanted} {'was' if wanted == 1 else 'were'} requested, but there {'is' if count == 1 else 'are'} {count}")
        return list(range(wanted))
    if not wanted:
        raise refuse("the list of devices is empty", available)
    if repeated := sorted({index for index in wanted if wanted.count(index) > 1}):
        raise refuse(f"{_spell(repeated)} {'is' if len(repeated) == 1 else 'are'} named more than once")
    if missing := [index for index in wanted if not 0 <= index < count]:
        raise refuse(f"there is no device {_spell(missing)}")
    return wanted


def spell_devices(indices: Sequence[int]) -> str:
    """Return the text that ``parse_devices`` converts to these indices.

    The text is the number ``n`` if the indices are 0 to n - 1. Otherwise, it is a list such as ``0,2``, or ``2,`` for a single index.
    """
    count = len(indices)
    if list(indices) == list(range(count)):
        return str(count)
    return ",".join(map(str, indices)) + "," * (count == 1)


def _spell(indices: Sequence[int]) -> str:
    if len(indices) > 4 and list(indices) == list(range(indices[0], indices[0] + len(indices))):
        return f"{indices[0]} to {indices[-1]}"
    return ", ".join(map(str, indices))
