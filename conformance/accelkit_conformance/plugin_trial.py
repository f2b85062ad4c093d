"""Find out, in a new process, whether a precision or a strategy can be used on any of the accelerators that a conformance run would use.

The plugin cannot be used if it supports none of these accelerators, or if a package that it needs is not installed. The tests that
use the plugin would then fail or have nothing to assert, so only the profile ``contract`` is run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from accelkit import PluginRecord, UnavailableError, UnsupportedError
from accelkit.discovery import loading
from accelkit_conformance.subject import Subject
from accelkit_conformance.subprocess_checks import about, answer, as_request, ask

_SECONDS = 300.0


def refusal(record: PluginRecord, accelerators: Sequence[PluginRecord]) -> dict[str, str] | None:
    """Return a ``reason`` and a ``hint`` if the plugin refuses every one of the accelerators, and None otherwise.

    Only an UnavailableError or UnsupportedError is a refusal. After any other error, the result is None, and the tests report the error.
    """
    try:
        found = ask(__name__, about(record) | {"accelerators": [as_request(one) for one in accelerators]}, _SECONDS)["refusals"]
    except AssertionError:  # the process crashed or hung
        return None
    if None in found:
        return None
    if missing := next((one for one in found if one["is_unavailable"]), None):
        return {"reason": missing["reason"], "hint": missing["hint"]}
    reasons = dict.fromkeys(one["reason"] for one in found)
    return {"reason": "; ".join(reasons), "hint": "name an accelerator that supports it with --on"}


def _refusal(record: PluginRecord, cls: type, on: PluginRecord) -> dict[str, Any] | None:
    """Create a Runtime with the plugin and the first device of the accelerator ``on``, to find out whether the plugin refuses this device.

    Returns:
        None if the plugin does not refuse. Otherwise, the ``reason`` and the ``hint`` of its error, and whether the error is an
        UnavailableError (``is_unavailable``). Only an UnavailableError or UnsupportedError is a refusal.
    """
    subject = Subject(record, cls)
    accelerator = loading.instantiate(loading.load_class(on), on)
    try:
        accelerator.load()
        subject.use(accelerator)
        rt = subject.runtime()
        if record.kind == "precision":
            _ = rt.device
        rt.teardown()
    except (UnavailableError, UnsupportedError) as error:
        is_unavailable = isinstance(error, UnavailableError)  # the text of this error does not depend on the accelerator
        reason = error.why if is_unavailable and error.why else f"{error.what}: {error.why}"
        return {"reason": reason, "hint": error.hint, "is_unavailable": is_unavailable}
    except Exception:
        return None
    return None


def main() -> None:
    request = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    record = PluginRecord(**request["record"])
    cls = loading.load_class(record)
    answer({"refusals": [_refusal(record, cls, PluginRecord(**one)) for one in request["accelerators"]]})


if __name__ == "__main__":
    main()
