"""Write docs/published-devices.md from the folders of the devices, and from the results that ``run.py`` wrote to docs/published-devices."""

from __future__ import annotations

import ast
import collections
import json
import re
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path

from accelkit_conformance.report import cause_of
from accelkit_conformance.reports import matrix, summary
from accelkit_conformance.reports.markdown import plain

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
RESULTS = REPOSITORY / "docs" / "published-devices"
PAGE = REPOSITORY / "docs" / "published-devices.md"
NOT_PASSED = "not_passed.jsonl"
"""The name of the file with the results of a device's tests that did not pass, one per line."""
_WIDTH = 100
_MOST_CAUSES = 12
_VARYING = re.compile(r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|\d+")
_INTRODUCTION = """\
# Published devices

We run the [conformance suite](conformance.md) on PyTorch devices from other projects, if the
devices need no special hardware. This page is for the authors and users of these devices. For each device, it
shows how many tests pass, whether a model trains, and the defects and limits that we found. For
each defect and each limit, it shows a program in plain torch, without accelkit, and the output of
the program. We wrote the plugins on this page. They are in `examples/published-devices`, and are
not published.

The numbers are not a ranking. These packages are young, none of them was written for accelkit, and
none claims to have every operator. The plugins declare no capabilities. A test of a capability,
such as a dtype or streams, is *not supported* if the device raises an error, computes in another
dtype under autocast, or lacks what is tested. A test also counts as
*not supported* if something that it requires is missing, such as a second device. A test counts as *failed* if the device computes a
wrong result, does not behave as torch guarantees, or raises an error in a test that is not
about a capability. A device without float32, for example, *fails* the test of a training step, but
the tests of its operators in float32 count as *not supported*. The number of failures is larger
than the number of defects on this page, because several tests may fail for the same reason, and
because we list only the defects that we reproduced. If a device was tested with an earlier version
of the suite, its number of tests may be lower.

`make devices` installs each device's package in an environment of its own, as users of the device
would. It runs the suite, the programs and `examples/digits.py`, and writes this page.
`make devices NAMES=rgpu` runs only `rgpu`. To add a device, add a folder to
`examples/published-devices`. If you are the author of one of these packages and something here is
wrong or has been fixed, please tell us.
"""


def names() -> list[str]:
    """Return the names of the devices, which are the names of the folders beside this file."""
    return sorted(path.parent.name for path in HERE.glob("*/device.toml"))


def text() -> str:
    """Return the page. It depends only on files of the repository."""
    found = [(path, summary.read(path)) for path in (RESULTS / f"{name}.json" for name in names()) if path.exists()]
    shown = [path.stem for path, _ in found]
    sections = [line for name in shown for line in _section(name)]
    return "\n".join([_wrapped(_INTRODUCTION), matrix.markdown(found), *sections, *_not_run()])


def _not_run() -> list[str]:
    """Return the section about packages that were tried and cannot be run."""
    reasons = tomllib.loads((HERE / "not_run.toml").read_text("utf-8"))
    rows = [_wrapped(f"- {package}: {reason}").removesuffix("\n") for package, reason in reasons.items()]
    return ["## Packages that we did not run", "", *rows]


def _section(name: str) -> list[str]:
    device = tomllib.loads((HERE / name / "device.toml").read_text("utf-8"))
    installed = [*device["requirements"], *(one for one in device.get("compiled", ()) if "{" not in one)]
    packages = ", ".join(f"`{one}`" for one in installed)
    programs = sorted((HERE / name / "defects").glob("*.py"))
    lines = [f"## {name}", "", _wrapped(device["description"]), _wrapped(f"Source: <{device['source']}>. Installed: {packages}.")]
    lines += ["The plugin:", "", *_block("python", (HERE / name / f"accelkit_{name}.py").read_text("utf-8"))]
    command = f"`python examples/digits.py --accelerator {name}`"
    lines += ["", _wrapped(f"{command} trains a convolutional network. The run ended with:")]
    lines += [*_block("text", (RESULTS / name / "digits.txt").read_text("utf-8")), "", f"### Defects and limits of {name}", ""]
    for program in programs:
        source = program.read_text("utf-8")
        lines += [_wrapped(ast.get_docstring(ast.parse(source)) or ""), *_block("python", _without_docstring(source)), ""]
        lines += ["It prints:", "", *_block("text", (RESULTS / name / f"{program.stem}.txt").read_text("utf-8")), ""]
    return lines + _unsupported(name)


def _unsupported(name: str) -> list[str]:
    """Return a section with a table of the causes of unsupported results, the most frequent cause first."""
    results = map(json.loads, (RESULTS / name / NOT_PASSED).read_text("utf-8").splitlines())
    found = groups([result["reason"] for result in results if result["kind"] == "unsupported"])
    if not found:
        return []
    rows = [f"| {number} | {plain(example[:160])} |" for number, example in found[:_MOST_CAUSES]]
    if others := found[_MOST_CAUSES:]:
        rows.append(f"| {sum(number for number, _ in others)} | {len(others)} other causes |")
    return [f"### What {name} does not support", "", "| tests | the error, or why the test does not apply |", "| --- | --- |", *rows, ""]


def groups(reasons: Sequence[str]) -> list[tuple[int, str]]:
    """Group reasons of unsupported results by cause. Return the size of each group and an example of its cause, largest group first."""
    causes = [cause_of(reason) for reason in reasons]
    counted = collections.Counter(_VARYING.sub("", one) for one in causes)
    return [(number, next(one for one in causes if _VARYING.sub("", one) == group)) for group, number in counted.most_common()]


def _without_docstring(source: str) -> str:
    return source[source.index("\n\n") + 2 :]


def _block(language: str, content: str) -> list[str]:
    return [f"```{{code-block}} {language}", content.strip("\n"), "```"]


def _wrapped(content: str) -> str:
    """Wrap each paragraph, so that the page follows the rules of the other pages. A paragraph ends with an empty line."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in content.strip().split("\n\n")]
    return "".join(f"{_filled(paragraph)}\n\n" for paragraph in paragraphs).removesuffix("\n")


def _filled(paragraph: str) -> str:
    return textwrap.fill(paragraph, _WIDTH, break_long_words=False, break_on_hyphens=False)
