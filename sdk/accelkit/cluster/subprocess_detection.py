"""Detect the cluster environment in a child process, for the command line. Third-party code runs there, and its output is discarded.

If this module is run as ``python -m accelkit.cluster.subprocess_detection`` with a request (JSON) on standard input, it writes the result
to the file that the request names.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from accelkit import child_processes
from accelkit.cluster.detection import describe, select_cluster
from accelkit.discovery import probing, subprocess_env
from accelkit.errors import AccelkitError, BrokenPluginError


def ask_cluster(name: str | None) -> dict[str, Any]:
    """Run ``select_cluster`` in a child process that has the environment variables of this process, and return the result.

    Returns:
        The fields of the ``ClusterDecision``, and three others: ``settings`` and ``errors`` are the results of ``describe``; ``warnings``
        contains the texts of the warnings in the child process.

    Raises:
        AccelkitError: If ``select_cluster`` raises an error, or if the child process does not return a result.
    """
    with tempfile.TemporaryDirectory(prefix="accelkit-cluster-") as folder:
        answer = Path(folder) / "answer"
        request = json.dumps({"sys_path": subprocess_env.search_path(), "answer": str(answer), "name": name})
        seconds = probing.time_limit("load")
        try:
            ended = child_processes.run(
                subprocess_env.command(__name__),
                input=request.encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=subprocess_env.environment(Path(__file__).resolve().parents[2]),
                timeout=seconds,
            )
            how = f"it ended with exit code {ended.returncode}"
        except subprocess.TimeoutExpired:
            how = f"it exceeded the time limit of {seconds:g} s (ACCELKIT_LOAD_TIMEOUT)"
        if not answer.exists():
            hint = "report it to the vendor of the cluster environment; ACCELKIT_CLUSTER=local avoids it for a single process"
            raise BrokenPluginError("the process that reads the cluster environment did not return a result", why=how, hint=hint)
        fields: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    if refusal := fields.get("refusal"):
        raise _rebuilt(refusal)
    return fields


def main() -> None:
    request = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    Path(request["answer"]).write_text(json.dumps(_answer(request["name"])), encoding="utf-8")


def _answer(name: str | None) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            selection = select_cluster(name)
        except AccelkitError as error:
            return {"refusal": {"error": type(error).__name__} | error.parts}
        settings, errors = describe(selection.environment)
    return selection.decision.as_dict() | {"settings": settings, "errors": errors, "warnings": [str(one.message) for one in caught]}


def _rebuilt(refusal: dict[str, str]) -> AccelkitError:
    import accelkit

    error: type[AccelkitError] = getattr(accelkit, refusal.pop("error"), AccelkitError)
    return error(refusal.pop("what"), **refusal)


if __name__ == "__main__":
    main()
