"""Expected failures and certification."""

import dataclasses
import datetime
from pathlib import Path

import pytest

import accelkit
from accelkit_conformance import certification, expectations, profiles
from accelkit_conformance.results import Result

GOOD = """
[[expected_failure]]
test = "operators/forward[add,*]"
reason = "adds wrongly"
issue = "https://example.org/1"
expires = 2999-01-01
"""


def read(tmp_path, text, version="2.13.0+cpu"):
    path = tmp_path / "expected_failures.toml"
    path.write_text(text)
    return expectations.read(path, version)


def test_a_glob_has_literal_brackets(tmp_path):
    (one,) = read(tmp_path, GOOD)
    assert one.matches("operators/forward[add,float32]")
    assert not one.matches("operators/forward[addmm,float32]")
    (two,) = read(tmp_path, GOOD + 'dtypes = ["int64"]\n')
    assert two.matches("operators/forward[add,int64]")
    assert not two.matches("operators/forward[add,float32]")


def test_a_list_of_tests_is_an_expectation_for_each(tmp_path):
    found = read(tmp_path, GOOD.replace('"operators/forward[add,*]"', '["operators/forward[add,*]", "device/*"]'))
    assert [one.test for one in found] == ["operators/forward[add,*]", "device/*"]
    assert {one.reason for one in found} == {"adds wrongly"}


def test_a_sample_is_a_predicate_and_an_error_a_class(tmp_path):
    (one,) = read(tmp_path, GOOD + 'sample = "ndim == 0 and kwargs.get(\'alpha\')"\nerror = "RuntimeError"\n')
    assert one.holds_for({"ndim": 0, "kwargs": {"alpha": 2}})
    assert not one.holds_for({"ndim": 1, "kwargs": {"alpha": 2}})
    assert one.explains(NotImplementedError("a RuntimeError too"))
    assert not one.explains(ValueError())


@pytest.mark.parametrize(
    ("sample", "says"), [("ndim == 0", "'ndim' is not defined"), ("shape[1] == 2", "out of range")], ids=["name", "index"]
)
def test_a_condition_that_does_not_fit_an_input_is_an_error_that_lists_the_variables(tmp_path, sample, says, error_text):
    (one,) = read(tmp_path, GOOD + f'sample = "{sample}"\n')
    with pytest.raises(accelkit.UsageError) as caught:
        one.holds_for({"shape": (1,), "target_dtype": "int8"})
    assert says in caught.value.why
    assert "shape, target_dtype" in caught.value.hint
    assert caught.value == error_text


def test_another_torch_is_another_matter(tmp_path):
    assert read(tmp_path, GOOD + 'torch = "<2.10"\n') == []
    assert len(read(tmp_path, GOOD + 'torch = ">=2.10"\n')) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "expected_failures.toml"),
        ("[surprise]\n", "surprise"),
        (GOOD.replace('reason = "adds wrongly"\n', ""), "reason"),
        (GOOD.replace("2999-01-01", '"2999-01-01"'), "'2999-01-01'"),
        (GOOD + 'sample = "ndim =="\n', "sample"),
        (GOOD + 'torch = "new"\n', "'new'"),
        (GOOD + "who = 1\n", "who"),
    ],
    ids=["no TOML", "a table", "no reason", "no date", "sample", "torch", "another key"],
)
def test_a_file_that_is_wrong_is_an_error_that_says_how(tmp_path, text, says, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert caught.value == error_text


def test_one_that_matches_nothing_is_an_error(tmp_path, error_text):
    found = read(tmp_path, GOOD)
    expectations.check_all_match(found, ["operators/forward[add,float32]"])
    with pytest.raises(accelkit.UsageError) as caught:
        expectations.check_all_match(found, ["operators/forward[sub,float32]"])
    assert "forward[add,*]" in caught.value.what
    assert caught.value == error_text


TORCH_DEFECTS = Path(expectations.__file__).with_name("torch_defects.toml")
SHIPPED = [TORCH_DEFECTS, *sorted(Path(__file__).parents[2].glob("builtin_plugins/**/expected_failures*.toml"))]


def test_none_of_our_own_has_expired():
    """A released wheel's may: the run says so and is not certified. Ours are looked at again before that."""
    assert len(SHIPPED) == 5
    declared = [one.as_dict() for path in SHIPPED for one in expectations.read(path, "2.13.0")]
    assert expectations.expired(declared, str(datetime.datetime.now(tz=datetime.UTC).date())) == []


@pytest.mark.parametrize("version", sorted(path.stem.removeprefix("torch-") for path in profiles.FOLDER.glob("torch-*.txt")))
def test_every_defect_of_torch_is_that_of_a_test(version):
    expectations.check_all_match(expectations.torch_defects(version), profiles.suite("full", version, "accelerator").tests)


def test_defects_of_torch_are_those_of_a_version_and_do_not_expire_for_a_vendor():
    everywhere = {one.test for one in expectations.torch_defects("2.13.0+cpu")}
    assert "optimizers/foreach_and_fused[SGD,bfloat16]" in everywhere - {one.test for one in expectations.torch_defects("2.14.0")}
    assert expectations.torch_defects("no version") == []
    declared = [one.as_dict() for one in expectations.torch_defects("2.13.0")]
    assert expectations.expired(declared, "2999-01-01") == []


def test_one_has_expired_on_the_day_after_its_date(tmp_path):
    (one,) = read(tmp_path, GOOD.replace("2999-01-01", "2020-01-31"))
    assert expectations.expired([one.as_dict()], "2020-01-31T23:59:59+00:00") == []
    assert expectations.expired([one.as_dict()], "2020-02-01T00:00:00+00:00") == ["operators/forward[add,*] (2020-01-31)"]


TESTS = [f"memory/test_{number}" for number in range(40)] + ["operators/forward[add,float32]"]
PASSED = [Result(test, "pass") for test in TESTS]


def objected(results, tests=TESTS, is_whole=True):
    return " ".join(certification.objections(tests, results, is_whole=is_whole))


def test_what_is_whole_and_good_is_certified():
    assert objected(PASSED) == ""


def test_a_declared_failure_is_no_objection_outside_of_the_mandatory_areas():
    assert objected([*PASSED[:-1], Result(TESTS[-1], "expected-failure")]) == ""
    assert "declared in mandatory areas" in objected([Result(TESTS[0], "expected-failure"), *PASSED[1:]])


def test_a_defect_of_torch_is_no_objection_in_a_mandatory_area():
    defect = dataclasses.replace(expectations.torch_defects("2.13.0")[0], test="memory/*")

    def objected_to(reason):
        results = [Result(TESTS[0], "expected-failure", reason=reason), *PASSED[1:]]
        return certification.objections(TESTS, results, is_whole=True, torch_defects=[defect])

    assert objected_to(defect.explanation) == []
    assert "declared in mandatory areas" in objected_to("another reason (https://example.org/1)")[0]


@pytest.mark.parametrize("kind", ["fail", "crash", "timeout", "oom", "wrong-error", "unexpected-pass", "over-unsupported", "flaky"])
def test_whatever_is_bad_or_flaky_is_an_objection(kind):
    assert "1 test " in objected([Result(TESTS[-1], kind), *PASSED[:-1]])


def test_an_expired_excuse_is_an_objection():
    reasons = certification.objections(TESTS, PASSED, is_whole=True, expired=["operators/forward[add,*] (2020-01-31)"])
    assert reasons == ["1 expected failure has expired: operators/forward[add,*] (2020-01-31)"]


def test_a_part_is_not_the_whole():
    assert "selected" in objected(PASSED, is_whole=False)
    assert "1 test was not run" in objected(PASSED[1:])


def test_what_was_not_run_counts_unless_it_is_declared_none():
    three = [Result(test, "unsupported", reason="there is one device here") for test in TESTS[:3]]
    assert "37 of 40 tests of the mandatory areas were run" in objected([*three, *PASSED[3:]])
    declared = [Result(test, "unsupported", reason="streams: declared none") for test in TESTS[:3]]
    assert objected([*declared, *PASSED[3:]]) == ""
