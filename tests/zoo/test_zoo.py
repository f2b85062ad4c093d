"""One bad plugin harms nobody: each is one row that says what is wrong, and an error when somebody selects it."""

from __future__ import annotations

import json

import pytest

from accelkit.errors import printable

from .animals import ANIMALS, CONTROL

pytestmark = pytest.mark.timeout(600)
in_zoo_process = pytest.mark.xdist_group("zoo")
"""In one process: these share what `list` and `doctor` say."""
in_selection_process = pytest.mark.xdist_group("selected zoo")
"""In one process, which may be another, with a zoo of its own: these share what happens when each is selected."""
each = pytest.mark.parametrize("animal", ANIMALS, ids=lambda animal: animal.name)


@pytest.fixture(scope="session")
def listed_before_probing(zoo):
    """``accelkit list`` before anybody asked a plugin."""
    return zoo.rows("list")


@pytest.fixture(scope="session")
def doctor_rows(zoo, listed_before_probing):
    """``accelkit doctor`` of the whole zoo."""
    return zoo.rows("doctor")


@pytest.fixture(scope="session")
def listed_after_probing(zoo, doctor_rows):
    """``accelkit list`` afterwards."""
    return zoo.rows("list")


def argument_of(animal):
    return f"{animal.kind}={animal.selected_as or animal.row_name}"


@pytest.fixture(scope="session")
def selected(zoo):
    """Every animal selected in one process."""
    result = zoo.run(str(__file__).replace("test_zoo.py", "select_all.py"), *map(argument_of, [*ANIMALS, CONTROL]))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_there_are_enough():
    assert len(ANIMALS) >= 20


@in_zoo_process
@each
def test_metadata_alone_shows_what_it_can(animal, listed_before_probing):
    row = listed_before_probing[animal.distribution]
    if animal.is_seen_unasked:
        check_row(animal, row)
    else:
        assert (row["status"], row["reason"]) == ("available", "not probed yet")


@in_zoo_process
@each
def test_its_one_row_in_doctor_says_what_is_wrong(animal, doctor_rows):
    check_row(animal, doctor_rows[animal.distribution])


@in_zoo_process
@each
def test_its_row_is_remembered(animal, listed_after_probing):
    check_row(animal, listed_after_probing[animal.distribution])


def check_row(animal, row):
    assert row["status"] == animal.status
    assert animal.reason in row["reason"]
    assert animal.hint in row["hint"]
    assert row["distribution"] == animal.distribution
    assert row["version"] in ("1.0", "0.9" if animal.name == "twice" else "1.0")


@in_selection_process
@each
def test_selecting_it_is_an_error_that_names_it(animal, selected):
    error = selected["errors"][argument_of(animal)]
    assert error is not None, "it was selected without complaint"
    assert animal.distribution in error["text"] or animal.name == "second"
    assert "==1.0" in error["text"] or "==0.9" in error["text"]
    assert printable(animal.reason) in error["text"]
    assert "what to do: " in error["text"]
    assert error["exit_code"] == (4 if animal.status == "unavailable" else 3)
    assert "\x1b" not in error["text"]


@in_selection_process
def test_the_host_goes_on(selected):
    assert selected["errors"][argument_of(CONTROL)] is None
    assert selected["trained_on"] == "cpu"
    assert selected["matmul"] == 1.0


@in_zoo_process
def test_the_healthy_one_is_untouched(listed_before_probing, doctor_rows, listed_after_probing):
    assert listed_before_probing["zoo-healthy"]["reason"] == "not probed yet"
    for rows in (doctor_rows, listed_after_probing):
        assert (rows["zoo-healthy"]["status"], rows["zoo-healthy"]["reason"]) == ("available", "it is well")


@in_zoo_process
def test_doctor_says_that_torch_itself_suffers(zoo, doctor_rows):
    report = json.loads(zoo.run("-m", "accelkit", "doctor", "zoo_healthy", "--json").stdout)
    check = report["checks"]["torch import"]
    assert check["status"] == "broken"
    assert "zoo-bytes: UnicodeDecodeError" in check["reason"]
    assert "pip install --force-reinstall zoo-bytes" in check["hint"]


@in_zoo_process
def test_every_command_works_beside_them(zoo, doctor_rows):
    listing = zoo.run("-m", "accelkit", "list")
    assert listing.returncode == 0
    assert "\x1b" not in listing.stdout
    assert "zoo[bold red]x[/]" in listing.stdout
    shown = next(line for line in listing.stdout.splitlines() if line.startswith(r"\x1b[31mzoo\x1b[0m "))
    assert shown.split()[1] == "accelerator", "control characters are shown, not swallowed"
    owners = [row["distribution"] for row in json.loads(zoo.run("-m", "accelkit", "list", "--json").stdout)["plugins"]]
    assert all(owners.count(animal.distribution) == 1 for animal in ANIMALS), "each has one row"
    doctor = zoo.run("-m", "accelkit", "doctor", "zoo_healthy")
    assert doctor.returncode == 1, "one of the animals breaks import torch for everybody"
    assert "zoo_healthy" in doctor.stdout
    assert zoo.run("-m", "accelkit", "why", "cpu").returncode == 0
    assert zoo.run("-m", "accelkit", "probe", "zoo_segfault").returncode == 3
    assert zoo.run("-m", "accelkit", "probe", "zoo_absent").returncode == 4
    why = zoo.run("-m", "accelkit", "why", "zoo_twice")
    assert why.returncode == 3
    assert "zoo-twice" in why.stderr
