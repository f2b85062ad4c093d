"""Write docs/published-devices.md from the folders of the devices, and from what ``run.py`` kept in docs/published-devices."""

from __future__ import annotations

import ast
import textwrap
import tomllib
from pathlib import Path

from accelkit_conformance.reports import matrix, summary

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
RESULTS = REPOSITORY / "docs" / "published-devices"
PAGE = REPOSITORY / "docs" / "published-devices.md"
_WIDTH = 100
_INTRODUCTION = """\
# Published devices

We also run the conformance suite on devices that others publish for PyTorch, if they run without
special hardware. This page is for their authors and users. It shows what trains, what passes, and
the defects that we found. For each defect there is a program in plain torch, without accelkit, and
what it printed.

The numbers are not a ranking. These packages are young, none of them was written for accelkit, and
none claims to have every operator. A test is *not supported* if the device raises an error where
the plugin declares nothing. It *failed* if the device computes a wrong result or breaks a promise
of torch. The number of failures is larger than the number of defects on this page, because several
tests may fail for the same reason, and because we list only those that we reproduced.

`make devices` installs each device in an environment of its own, as its users would. It runs the
suite, the programs and `examples/digits.py`, and writes this page. `make devices NAMES=rgpu` runs one device. To add one, add a folder to
`examples/published-devices`. If you are the author of one of these packages and something here is
wrong or has been fixed, please tell us.
"""


def names() -> list[str]:
    """Return the names of the devices: those of the folders beside this file."""
    return sorted(path.parent.name for path in HERE.glob("*/device.toml"))


def text() -> str:
    """Return the page. It depends only on files of the repository."""
    found = [(path, summary.read(path)) for path in (RESULTS / f"{name}.json" for name in names()) if path.exists()]
    shown = [path.stem for path, _ in found]
    return "\n".join([_wrapped(_INTRODUCTION), matrix.markdown(found), *(line for name in shown for line in _section(name))])


def _section(name: str) -> list[str]:
    device = tomllib.loads((HERE / name / "device.toml").read_text("utf-8"))
    packages = ", ".join(f"`{one}`" for one in device["requirements"])
    programs = sorted((HERE / name / "defects").glob("*.py"))
    lines = [f"## {name}", "", _wrapped(device["description"]), _wrapped(f"Source: <{device['source']}>. Installed: {packages}.")]
    if areas := device.get("areas"):
        lines += [_wrapped(f"Only these areas of the suite were run: {', '.join(areas)}. {device['why_only_these']}")]
    lines += ["The plugin:", "", *_block("python", (HERE / name / f"accelkit_{name}.py").read_text("utf-8"))]
    lines += ["", f"`python examples/digits.py --accelerator {name}` trains a convolutional network. Its last line:", ""]
    lines += [*_block("text", (RESULTS / name / "digits.txt").read_text("utf-8")), "", f"### Defects of {name}", ""]
    for program in programs:
        source = program.read_text("utf-8")
        lines += [_wrapped(ast.get_docstring(ast.parse(source)) or ""), *_block("python", _without_docstring(source)), ""]
        lines += ["It prints:", "", *_block("text", (RESULTS / name / f"{program.stem}.txt").read_text("utf-8")), ""]
    return lines


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
