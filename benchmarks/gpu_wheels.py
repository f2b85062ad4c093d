"""Collect the wheels that ``make gpu`` installs on a machine without a package index: everything except torch, in at most 50 MB.

    python benchmarks/gpu_wheels.py --python 3.12 --output build/gpu-wheels

The versions are those of this environment. The wheels are for x86-64 Linux with glibc 2.28, like torch's own wheels. accelkit itself is
not included, because it is installed from the checkout. NumPy is included if it fits; machines that have torch usually have NumPy too.
manifest.json lists all packages.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from offline_environment import BUILD_REQUIREMENTS, EXTRAS, REQUIREMENTS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WANTED = (f"accelkit[{EXTRAS}]", *REQUIREMENTS, *BUILD_REQUIREMENTS, "pip")
"""pip is among them because the Python that has torch may have no pip."""
ON_THE_MACHINE = {"torch"}
IF_IT_FITS = {"numpy"}
MEGABYTE = 1_000_000
LIMIT = 50 * MEGABYTE
PLATFORMS = ("manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 29)))
DIGITS = Path("datasets", "data", "digits.csv.gz")


def pins(requirements: Iterable[str], markers: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the version of each of these packages and of their dependencies, except torch and its dependencies.

    Args:
        requirements: The packages, as requirement strings.
        markers: The environment markers of the machine that the wheels are for, such as ``python_version``.

    Yields:
        The normalised name, and the version that is installed in this environment.

    Raises:
        importlib.metadata.PackageNotFoundError: If a package is not installed in this environment.
    """
    todo = [Requirement(text) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    found: set[str] = set()
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if name in ON_THE_MACHINE or (name, extras) in seen:
            continue
        seen.add((name, extras))
        distribution = importlib.metadata.distribution(name)
        if name not in found:
            found.add(name)
            yield name, distribution.version
        for text in distribution.requires or ():
            needed = Requirement(text)
            wanted = [markers | {"extra": extra} for extra in (*extras, "")]
            if needed.marker is None or any(needed.marker.evaluate(environment) for environment in wanted):
                todo.append(needed)


def markers_of(python: str) -> dict[str, str]:
    """Return the environment markers of CPython ``python``, such as ``3.12``, on x86-64 Linux."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    }


def download(python: str, output: Path, packages: dict[str, str]) -> None:
    """Download the wheel of each package with pip."""
    platforms = [option for platform in PLATFORMS for option in ("--platform", f"{platform}_x86_64")]
    target = ["--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", python, *platforms]
    names = [f"{name}=={version}" for name, version in packages.items()]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    subprocess.run([*pip, *target, "--dest", str(output), *names], check=True)


def size(folder: Path) -> int:
    """Return the size of all files in the folder, in bytes."""
    return sum(file.stat().st_size for file in folder.iterdir())


def too_large(folder: Path, limit: int) -> str:
    """Return an error message of one line, with the size of the wheels, the limit, and the largest files."""
    files = sorted(folder.iterdir(), key=lambda file: -file.stat().st_size)[:5]
    largest = ", ".join(f"{file.name.split('-')[0]} {file.stat().st_size / MEGABYTE:.1f}" for file in files)
    return f"the wheels take {size(folder) / MEGABYTE:.1f} MB, and at most {limit / MEGABYTE:.0f} MB are allowed; the largest: {largest}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="Python version on the GPU machine")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="emptied first")
    options = parser.parse_args()
    packages = dict(pins(WANTED, markers_of(options.python)))
    del packages["accelkit"]
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn is not None
    assert sklearn.origin is not None
    shutil.copy(Path(sklearn.origin).parent / DIGITS, options.output)  # scikit-learn itself needs SciPy, which alone takes 35 MB
    download(options.python, options.output, {name: version for name, version in packages.items() if name not in IF_IT_FITS})
    if size(options.output) > LIMIT:
        print(f"gpu-wheels: {too_large(options.output, LIMIT)}", file=sys.stderr)
        return 1
    left_out = []
    for name in sorted(IF_IT_FITS & packages.keys()):
        alone = options.output / name
        download(options.python, alone, {name: packages[name]})
        if size(options.output) + size(alone) <= LIMIT:
            for wheel in alone.iterdir():
                wheel.rename(options.output / wheel.name)
        else:
            left_out.append(name)
        shutil.rmtree(alone)
    manifest = {"python": options.python, "packages": packages, "left_out": left_out}
    (options.output / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", "utf-8")
    without = f", without {', '.join(left_out)}, which must be there" if left_out else ""
    count = len(list(options.output.glob("*.whl")))
    print(f"{options.output}: {count} wheels for Python {options.python}, {size(options.output) / MEGABYTE:.1f} MB{without}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
