"""Requirements that need no parser to be seen as met are those that packaging's parser sees as met."""

import itertools
import subprocess
import sys

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from accelkit.discovery.compatibility import _is_satisfied, objection

NAMES = ("accelkit", "Accelkit", "torch", "numpy", "foo-", "-foo", "a b")
SPECIFIERS = (
    "",
    ">=0.1",
    ">= 0.1",
    ">=0.1.0",
    ">=2",
    ">=0.1,<9",
    "~=0.1",
    ">=0.1a1",
    ">=1.0.dev0",
    "==0.1.*",
    ">=",
    ">=1!0",
    "[extra]>=0.1",
)
REST = ("", "; python_version > '2'", "; extra == 'x'")
VERSIONS = ("0.1", "0.1.0", "0.0.9", "2", "2.13.0a0+acme", "2.13.0+cpu", "0.1rc1", "0.1.post1", "1!0.0", "1.0-garbage", "")


def seen_as_met(line, version):
    try:
        requirement = Requirement(line)
        return requirement.name == "numpy" or requirement.specifier.contains(Version(version).base_version, prereleases=True)
    except (InvalidRequirement, InvalidVersion):
        return False


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_plainly_met_is_met(version):
    for parts in itertools.product(NAMES, SPECIFIERS, REST):
        line = "".join(parts)
        assert not _is_satisfied(line, lambda name: version) or seen_as_met(line, version), f"{line!r} with {version!r}"


def test_most_requirements_are_plainly_met():
    assert all(_is_satisfied(line, {"accelkit": "0.1.0", "torch": "2.13.0+cpu"}.get) for line in ("accelkit>=0.1", "torch >= 2.9", "numpy"))
    assert not _is_satisfied("accelkit>=0.2", lambda name: "0.1.0")
    assert not _is_satisfied("accelkit>=0.1", lambda name: None)
    assert objection(["accelkit>=0.1.0.0"], lambda name: "0.1") is None  # equal, though longer


def test_a_plain_requirement_imports_no_parser():
    code = "import sys; from accelkit.discovery.compatibility import objection as o; assert o([{!r}], lambda n: '1.0') is None; "
    for line, has_parser in (("accelkit>=0.1", False), ("accelkit>=0.1,<2", True)):
        program = code.format(line) + f"assert ('packaging' in sys.modules) is {has_parser}, sorted(sys.modules)"
        subprocess.run([sys.executable, "-c", program], check=True)
