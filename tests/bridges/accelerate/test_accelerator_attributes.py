"""docs/guides/from-accelerate.md names every public attribute of Accelerate's Accelerator, and says which arguments differ."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import accelerate
import pytest
from packaging.version import Version
from programs import run

import accelkit
from accelkit.bridges.accelerate.compat import NEWEST

PAGE = (Path(__file__).parents[3] / "docs/guides/from-accelerate.md").read_text().split("## Every attribute of Accelerator")[1]
IS_NEWEST = Version(accelerate.__version__).release[:2] == Version(NEWEST).release[:2]
NAMES = re.compile(r"`(\w+)`")


def rows(heading: str) -> dict[str, str]:
    """The table whose first row begins so: what its second column says of each name of the first one."""
    table = PAGE.split(f"| {heading} |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [line.strip("|").split(" | ", 1) for line in table]
    return {name: text for names, text in cells for name in NAMES.findall(names)}


SAME = set(NAMES.findall(PAGE.split("**Same name, same arguments**")[1].split("\n\n")[0]))
OTHER_ARGUMENTS, NOT_THERE = rows("same name"), rows("attribute or method")


@pytest.fixture(scope="module")
def theirs() -> set[str]:
    (found,) = run("accelerate_program.py", "attributes", "-", "-", "-")
    return set(found["attributes"])


@pytest.fixture(scope="module")
def ours() -> set[str]:
    runtime = accelkit.Runtime("cpu")
    return {name for name in [*dir(type(runtime)), *vars(runtime)] if not name.startswith("_")}


def test_every_attribute_is_listed_once(theirs):
    lists = [SAME, OTHER_ARGUMENTS.keys(), NOT_THERE.keys()]
    listed = set().union(*lists)
    assert len(listed) == sum(map(len, lists)), "one stands in two lists"
    assert theirs - listed == set(), "not in the lists"
    if IS_NEWEST:
        assert listed - theirs == set(), "in the lists, and not in Accelerate"


def test_what_is_listed_as_there_is_there_and_the_rest_is_not(ours):
    assert SAME | OTHER_ARGUMENTS.keys() <= ours
    assert not NOT_THERE.keys() & ours


@pytest.mark.skipif(not IS_NEWEST, reason="the lists are those of the newest Accelerate")
@pytest.mark.parametrize("name", sorted(SAME | OTHER_ARGUMENTS.keys()))
def test_arguments_are_the_same_or_listed(name):
    said = set(NAMES.findall(OTHER_ARGUMENTS.get(name, "")))
    method = getattr(accelerate.Accelerator, name, None)
    if not inspect.isfunction(method):
        assert not callable(getattr(accelkit.Runtime, name, None)), "a property there, a method here"
        return
    kinds = {parameter.kind for name, parameter in inspect.signature(method).parameters.items() if name != "self"}
    if kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return  # a decorator hides its arguments
    assert differing(method, getattr(accelkit.Runtime, name)) == said & inspect.signature(method).parameters.keys()


def differing(their_method, our_method) -> set[str]:
    """Their arguments that ours has not: in the same place, if they can be given without a name, and with the same default."""
    their_parameters = list(inspect.signature(their_method).parameters.values())
    our_parameters = list(inspect.signature(our_method).parameters.values())
    ours = {parameter.name: (place, parameter) for place, parameter in enumerate(our_parameters)}
    found = set()
    for place, parameter in enumerate(their_parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            is_alike = place < len(our_parameters) and our_parameters[place].kind is parameter.VAR_POSITIONAL
        elif parameter.kind is parameter.VAR_KEYWORD:
            continue  # what is passed on
        else:
            our_place, same = ours.get(parameter.name, (-1, None))
            is_alike = same is not None and same.default == parameter.default and same.kind is parameter.kind and our_place == place
        if not is_alike:
            found.add(parameter.name)
    return found
