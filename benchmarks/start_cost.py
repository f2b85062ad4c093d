"""Time to start a new process until the device is selected: accelkit, Fabric and Accelerate, compared with ``import torch`` alone."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import arguments, compare, report

PLUGIN = """
from accelkit import Accelerator, Availability

class Plugin(Accelerator):
    device_type = "cpu"
    is_simulated = {simulated}

    @classmethod
    def probe(cls):
        return Availability.{answer}
"""
SELECT = "import torch, accelkit; accelkit.Runtime(accelerator={name!r}).state"


def install(site: Path, name: str, answer: str, simulated: bool) -> None:
    """Write a plugin to ``site``, a folder for PYTHONPATH, as pip would install it."""
    (site / f"bench_{name}.py").write_text(PLUGIN.format(answer=answer, simulated=simulated))
    info = site / f"bench_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.3\nName: bench-{name}\nVersion: 1.0\nRequires-Dist: accelkit>=0.1\n\n")
    (info / "entry_points.txt").write_text(f"[accelkit.accelerators]\n{name} = bench_{name}:Plugin\n")
    (info / "RECORD").write_text("")


def milliseconds(code: str, environ: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3


def first_start(code: str, environ: dict[str, str]) -> float:
    """Like ``milliseconds``, with a new cache folder, so that accelkit knows nothing from earlier processes."""
    with tempfile.TemporaryDirectory() as folder:
        return milliseconds(code, environ | {"ACCELKIT_CACHE_DIR": folder})


def main() -> None:
    options = arguments("Start-up, until the device is selected.", rounds=15, accelerator="cpu")
    name = options.accelerator
    with tempfile.TemporaryDirectory() as folder:
        bare = {name: value for name, value in os.environ.items() if not name.startswith("ACCELKIT_") and name != "PYTHONDONTWRITEBYTECODE"}
        bare |= {"ACCELKIT_CACHE_DIR": f"{folder}/cache"}
        site = Path(folder) / "site"
        site.mkdir()
        for number in range(3):
            install(site, f"absent{number}", "absent('no such card')", simulated=False)
        install(site, "known", "usable()", simulated=True)
        with_peers = bare | {"PYTHONPATH": str(Path(__file__).parent)}
        crowded = bare | {"PYTHONPATH": str(site)}
        measures = {
            "import torch": ("import torch", bare),
            f"accelkit {name}": (SELECT.format(name=name), bare),
            "accelkit, a cached verdict": (SELECT.format(name="known"), crowded),
            "accelkit auto": (SELECT.format(name="auto"), bare),
            "accelkit, auto, 4 more plugins": (SELECT.format(name="auto"), crowded),
            "Fabric": (f"import torch, peers; peers.fabric({name!r}).device", with_peers),
            "Accelerate": (f"import torch, peers; peers.accelerate({name!r}).device", with_peers),
        }
        if name != "cpu":  # starting a driver takes a long time and would hide what these two measure
            del measures["accelkit, a cached verdict"], measures["accelkit, auto, 4 more plugins"]
        for code, environ in measures.values():
            milliseconds(code, environ)  # a first run, so that bytecode and verdicts are cached
        plans = {"start-up, until the device is selected": measures}
        imports = {"nothing": ("", bare), "import accelkit": ("import accelkit", bare)}
        imports |= {f"import {package}": (f"import {package}", bare) for package in ("torch", "lightning.fabric", "accelerate")}
        if name == "cpu":
            plans["importing"] = imports
        tables = []
        for title, them in plans.items():
            calls = {what: functools.partial(milliseconds, *given) for what, given in them.items()}
            if them is measures:
                calls["accelkit auto, first start"] = functools.partial(first_start, *measures["accelkit auto"])
            tables.append(compare(title, "ms of wall time", calls, options.rounds, options.seconds))
    report(tables, is_json=options.json)


if __name__ == "__main__":
    main()
