"""``python tests/audit.py``: asks PyPI's advisories about every package that is installed here. Exits 1 for one that is not excepted below.

Without a network nothing can be asked: it says so, and is no failure.
"""

from __future__ import annotations

import json
import subprocess
import sys

EXCEPTIONS: dict[str, str] = {}
"""By the advisory's id: why it does not concern accelkit."""


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--skip-editable", "--format", "json", "--progress-spinner", "off"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(result.stdout)["dependencies"]
    except ValueError:
        last = result.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        print(f"nothing is audited: the advisories could not be asked: {last[0]:.300}")
        return 0
    asked = [package for package in packages if "vulns" in package]
    print(f"{len(asked)} of {len(packages)} packages were audited; PyPI does not know the others, or could not be asked")
    found = [(package, one) for package in asked for one in package["vulns"] if one["id"] not in EXCEPTIONS]
    for package, one in found:
        repair = f"repaired in {', '.join(one['fix_versions'])}" if one["fix_versions"] else "not repaired yet"
        print(f"{package['name']} {package['version']}: {one['id']}: {repair}: {' '.join(one['description'].split())[:300]}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
