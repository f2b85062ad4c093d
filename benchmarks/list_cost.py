"""Time of ``accelkit list`` with many distributions installed, compared with ``python -c "import click, importlib_metadata"``."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import arguments, compare, report

COUNTS = (50, 300, 1000)


def fill(site: Path, count: int) -> None:
    """Write the metadata of ``count`` installed distributions to ``site``. Each has a console script, and every fiftieth an accelerator."""
    site.mkdir()
    for number in range(count):
        info = site / f"filler_{number}-1.{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.3\nName: filler-{number}\nVersion: 1.{number}\n\n" + "A description.\n" * 40)
        (info / "RECORD").write_text("")
        group = f"[accelkit.accelerators]\nfiller{number} = filler_{number}:Filler\n" if number % 50 == 0 else ""
        (info / "entry_points.txt").write_text(f"[console_scripts]\nfiller{number} = filler_{number}:main\n{group}")


def milliseconds(command: list[str], environ: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    options = arguments("accelkit list with many distributions.", rounds=15)
    with tempfile.TemporaryDirectory() as folder:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ["ACCELKIT_CACHE_DIR"] = f"{folder}/cache"
        measures = {"import click, metadata": ([sys.executable, "-c", "import click, importlib_metadata"], environ)}
        for count in COUNTS:
            site = Path(folder) / str(count)
            fill(site, count)
            measures[f"accelkit list, with {count} more distributions"] = (
                [sys.executable, "-m", "accelkit", "list"],
                environ | {"PYTHONPATH": str(site)},
            )
        for command, variables in measures.values():
            milliseconds(command, variables)
        calls = {name: functools.partial(milliseconds, *measure) for name, measure in measures.items()}
        report([compare("accelkit list", "ms of wall time", calls, options.rounds, options.seconds)], is_json=options.json)


if __name__ == "__main__":
    main()
