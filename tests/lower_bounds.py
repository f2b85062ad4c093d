"""Print the oldest versions that pyproject.toml allows, as arguments for pip: ``python tests/lower_bounds.py conformance template``.

torch is omitted, because its oldest version has a separate environment.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import importlib_metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECTS = (ROOT, ROOT / "builtin_plugins" / "accelkit-fake-xpu")
LEFT_OUT = {"accelkit", "torch"}


def of_dependencies(extras: Iterable[str] = ()) -> dict[str, Version]:
    """Return the oldest versions that all distributions of this repository allow, by name, with these extras of accelkit."""
    accelkit, *others = (_pyproject(folder)["project"] for folder in PROJECTS)
    lines = [*accelkit["dependencies"], *(line for extra in extras for line in accelkit["optional-dependencies"][extra])]
    return _oldest([*lines, *(line for other in others for line in other["dependencies"])])


def of_the_build() -> dict[str, Version]:
    """Return the oldest versions of the build requirements, by name."""
    return _oldest(line for folder in PROJECTS for line in _pyproject(folder)["build-system"]["requires"])


def differences(bounds: Mapping[str, Version]) -> list[str]:
    """Return a line for each package of which another version is installed."""
    installed = {name: importlib_metadata.version(name) for name in bounds}
    return [f"{name} {installed[name]} is installed, not {bounds[name]}" for name in bounds if Version(installed[name]) != bounds[name]]


def _pyproject(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))


def _oldest(lines: Iterable[str]) -> dict[str, Version]:
    found: dict[str, Version] = {}
    for requirement in map(Requirement, lines):
        name = canonicalize_name(requirement.name)
        bounds = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
        if name not in LEFT_OUT:
            if not bounds:
                raise SystemExit(f"pyproject.toml has no lower bound for {requirement}")
            found[name] = max(*bounds, found.get(name, Version("0")))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--build", action="store_true", help="print the build requirements of the distributions")
    parser.add_argument("--check", action="store_true", help="print nothing, but fail if this environment has other versions")
    arguments = parser.parse_args()
    bounds = of_the_build() if arguments.build else of_dependencies(arguments.extras)
    if not arguments.check:
        print(*(f"{name}=={version}" for name, version in bounds.items()))
    elif found := differences(bounds):
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
