"""Start to device selected, in a fresh process: over ``import torch`` alone, and beside the peers."""

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
    """A plugin as pip leaves it, in a folder for PYTHONPATH."""
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


def main() -> None:
    options = arguments("Start to device selected.", rounds=15)
    with tempfile.TemporaryDirectory() as folder:
        bare = {name: value for name, value in os.environ.items() if not name.startswith("ACCELKIT_") and name != "PYTHONDONTWRITEBYTECODE"}
        bare |= {"ACCELKIT_CACHE_DIR": f"{folder}/cache"}
        site = Path(folder) / "site"
        site.mkdir()
        for number in range(3):
            install(site, f"absent{number}", "absent('no such card')", simulated=False)
        install(site, "known", "usable()", simulated=True)
        crowded = bare | {"PYTHONPATH": str(site)}
        measures = {
            "import torch": ("import torch", bare),
            "accelkit cpu": (SELECT.format(name="cpu"), bare),
            "accelkit remembered plugin": (SELECT.format(name="known"), crowded),
            "accelkit auto": (SELECT.format(name="auto"), bare),
            "accelkit auto, 4 others": (SELECT.format(name="auto"), crowded),
            "Fabric": ("import torch; from lightning.fabric import Fabric; Fabric(accelerator='cpu', devices=1).device", bare),
            "Accelerate": ("import torch; from accelerate import Accelerator; Accelerator(cpu=True).device", bare),
        }
        for code, environ in measures.values():
            milliseconds(code, environ)  # compiled to bytecode, and remembered
        imports = {"nothing": ("", bare), "import accelkit": ("import accelkit", bare)}
        imports |= {f"import {name}": (f"import {name}", bare) for name in ("torch", "lightning.fabric", "accelerate")}
        tables = [
            compare(
                title, "ms of wall time", {name: functools.partial(milliseconds, *given) for name, given in them.items()}, options.rounds
            )
            for title, them in (("start to device selected", measures), ("importing", imports))
        ]
    report(tables, is_json=options.json)


if __name__ == "__main__":
    main()
