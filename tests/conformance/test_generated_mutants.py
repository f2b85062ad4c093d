"""Generated mutants: their ids, the sample, and real runs of a few."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import accelkit
from accelkit.selection import resolve
from accelkit_conformance import commands, generated_selftest
from accelkit_conformance.mutants import generated
from accelkit_conformance.mutants.generated import AXES, Generated

pytestmark = pytest.mark.usefixtures("forked_workers")

KNOWN = {"add": [axis for axis in AXES if axis != "zero_gradient"], "tanh_backward": list(AXES), "_foreach_add": ["last_element"]}


def test_a_mutant_can_be_made_again_from_its_id():
    for mutant in generated.sample(KNOWN, 20, seed=1):
        assert Generated.from_id(mutant.id) == mutant


@pytest.mark.parametrize("text", ["generated[add,last_row]", "generated[add,first_row,3]", "generated[add,last_row,x]"])
def test_what_is_not_an_id_is_an_error_that_names_the_axes(text, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        Generated.from_id(text)
    assert text in caught.value.what
    assert caught.value == error_text


def test_a_sample_depends_on_its_seed_alone_and_has_no_mutant_twice():
    first, again, other = (generated.sample(KNOWN, 30, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(set(first)) == 30
    assert all(mutant.axis in KNOWN[mutant.operator] for mutant in first)


def test_a_mutant_runs_on_the_tests_of_its_area_and_first_on_those_that_name_its_operator():
    tests = generated.tests_of(Generated("tanh_backward", "last_row", 1), "2.13")
    assert {test.partition("/")[0] for test in tests} == {"autograd"}
    assert "[tanh," in tests[0]
    assert Generated("_foreach_add", "last_row", 1).area == "optimizers"
    assert Generated("add", "strided", 1).area == "layout"


def test_a_few_are_killed_and_one_that_cannot_go_wrong_is_not():
    """In one process: a fault that was detected must not be seen in the runs of the next mutant."""
    impossible = Generated("bitwise_and", "nan", 1)  # integers have no NaN
    mutants = [
        Generated("add", "last_element", 0),
        Generated("add", "second_device", 1),
        impossible,
        Generated("mm", "strided", 1),
        Generated("tanh_backward", "zero_gradient", 1),
        Generated("sum", "dtype", 3),
    ]
    seen = []
    outcomes = generated_selftest.examine(resolve("fake_xpu"), mutants, 1, seen.append)
    assert [outcome.mutant for outcome in outcomes] == mutants
    assert seen == outcomes
    assert [outcome.verdict for outcome in outcomes] == ["killed", "killed", "not triggered", "killed", "killed", "killed"]
    assert outcomes[3].killer.startswith("layout/noncontiguous_inputs[mm")
    by_area = dict(generated_selftest.score(outcomes, lambda one: one.mutant.area))
    assert by_area == {"operators": [4, 3, 0, 1], "layout": [1, 1, 0, 0], "autograd": [1, 1, 0, 0], "all": [6, 5, 0, 1]}


def test_the_command_runs_a_sample_and_its_json_follows_the_schema():
    command = [sys.executable, "-m", "accelkit", "conformance", "selftest", "--generated", "2", "--seed", "3", "-n", "1", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    matrix = json.loads(run.stdout)
    jsonschema.validate(matrix, json.loads(Path(commands.__file__).with_name("schema.json").read_text("utf-8")))
    assert [one["id"] for one in matrix["generated"]] == [mutant.id for mutant in generated.sample(generated.operators(), 2, 3)]
    assert all(one["verdict"] in run.stderr for one in matrix["generated"])
