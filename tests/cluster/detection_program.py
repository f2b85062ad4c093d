"""Prints, as one line of JSON, which cluster environment this process is in and what it says. Imports no torch."""

from __future__ import annotations

import json
import os
import sys
import warnings

from accelkit.cluster.detection import describe, select_cluster


def main() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        selection = select_cluster()
        settings, errors = describe(selection.environment)
    candidates = {one.name: [one.status, one.reason] for one in selection.decision.candidates}
    line = {"environment": selection.environment.name, **settings, "errors": errors, "warnings": [str(one.message) for one in caught]}
    line |= {"candidates": candidates, "host": os.environ.get("SLURMD_NODENAME"), "torch": "torch" in sys.modules}
    os.write(1, (json.dumps(line) + "\n").encode())  # one write, so that lines of several processes do not mix


main()
