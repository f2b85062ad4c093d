"""``python tests/audit.py``: check every installed package for security advisories on PyPI. Exits with 1 if one is not excepted below.

Without a network, it reports that nothing was checked, and exits with 0.
"""

from __future__ import annotations

import json
import subprocess
import sys

EXCEPTIONS: dict[str, str] = {}
"""The reason why an advisory does not affect accelkit, by the id of the advisory."""


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--skip-editable", "--format", "json", "--progress-spinner", "off"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(result.stdout)["dependencies"]
    except ValueError:
        last = result.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        print(f"nothing was audited, because PyPI could not be reached: {last[0]:.300}")
        return 0
    audited = [package for package in packages if "vulns" in package]
    print(f"{len(audited)} of {len(packages)} packages were audited; the others are not on PyPI, or PyPI did not respond")
    found = [(package, one) for package in audited for one in package["vulns"] if one["id"] not in EXCEPTIONS]
    for package, one in found:
        fix = f"fixed in {', '.join(one['fix_versions'])}" if one["fix_versions"] else "not fixed yet"
        print(f"{package['name']} {package['version']}: {one['id']}: {fix}: {' '.join(one['description'].split())[:300]}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
