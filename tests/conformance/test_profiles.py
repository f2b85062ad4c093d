"""The frozen lists of tests: of which torch, in step with the code and with the documentation."""

import subprocess
import sys
from pathlib import Path

import pytest

import accelkit
from accelkit.discovery.metadata import installed_version
from accelkit_conformance import checks, generate_docs, profiles

ROOT = Path(__file__).parents[2]
TORCH = installed_version("torch")


def test_the_frozen_list_is_what_the_code_has():
    code = "from accelkit_conformance import freeze_profiles as freeze; import sys; sys.stdout.write(freeze.written(freeze.current()))"
    now = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    frozen = profiles.FOLDER / f"torch-{'.'.join(TORCH.split('.')[:2])}.txt"
    assert now == frozen.read_text(), "run python -m accelkit_conformance.freeze_profiles"


def test_the_lists_for_all_torches_differ_in_operators_and_modules_alone():
    follow_torch = {
        "layout/noncontiguous_inputs",
        "layout/views_in_inference_mode",
        "layout/views_on_the_device",
        "errors/changed_calls",
        "memory/modules_leave_nothing",
        "layout/conditions",
        "operators/conditions",
        "autograd/conditions",
        "modules/module",
        "modules/converted_on_the_device",
        "operators/forward",
        "operators/out",
        "operators/out_dtypes",
        "operators/overloads",
        "operators/on_another_device",
        "operators/special_values",
        "autograd/backward",
        "memory/operators_leave_nothing",
        "errors/invalid_calls",
        "errors/invalid_calls_of_modules",
        "arguments/other_values",
        "arguments/rewritten_values",
        "arguments/empty_tensors",
        "arguments/lazy_operands",
        "arguments/expanded_arguments",
        "arguments/written_operands",
        "autograd/recorded_graphs",
    }

    def parts(minor):
        tests = profiles.suite("full", minor).tests
        return {test.partition("[")[0] for test in tests}, {test for test in tests if test.partition("[")[0] not in follow_torch}

    minors = [path.stem.removeprefix("torch-") for path in profiles.FOLDER.glob("torch-*.txt")]
    assert {"2.9", "2.15"} <= set(minors)
    for minor in minors:
        assert parts(minor) == parts(TORCH), f"make lists TORCHES={minor}"


def test_profiles_are_cumulative_and_ids_are_of_checks():
    sizes = []
    for profile in checks.PROFILES:
        tests = profiles.suite(profile, TORCH).tests
        assert len(set(tests)) == len(tests)
        assert not sizes or set(sizes[-1]) < set(tests)
        sizes.append(tests)
    assert len(sizes[-1]) > 10_000
    every = [test for kind in checks.SUBJECT_KINDS for test in profiles.suite("full", TORCH, kind).tests]
    assert {checks.area_of(test) for test in every} == set(checks.AREAS)


def test_every_check_says_what_it_asserts():
    for one in checks.all_checks():
        assert one.description.endswith("."), f"{one.area}/{one.name} does not say what it asserts"


def test_the_page_says_what_the_checks_say():
    page = (ROOT / "docs" / "conformance.md").read_text()
    assert generate_docs.written(page) == generate_docs.generated(), "run python -m accelkit_conformance.generate_docs docs/conformance.md"
    for profile in checks.PROFILES:
        assert f"| `{profile}` |" in page


def test_a_page_without_markers_is_an_error(tmp_path, error_text):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{generate_docs.START}\nthe end marker is missing\n")
    with pytest.raises(accelkit.UsageError) as caught:
        generate_docs.update(page)
    assert generate_docs.END in caught.value.hint
    assert caught.value == error_text
    assert "the end marker is missing" in page.read_text()


def test_the_text_between_the_markers_of_a_page_is_replaced(tmp_path):
    page = tmp_path / "conformance.md"
    page.write_text(f"# Page\n\n{generate_docs.START}\nold\n{generate_docs.END}\nthe end\n")
    generate_docs.update(page)
    text = page.read_text()
    assert generate_docs.written(text) == generate_docs.generated()
    assert text.startswith("# Page\n")
    assert text.endswith(f"{generate_docs.END}\nthe end\n")


def test_an_unknown_torch_is_an_error_that_names_the_known_ones(error_text):
    with pytest.raises(accelkit.UnsupportedError) as caught:
        profiles.suite("smoke", "1.0.0")
    assert "1.0" in caught.value.what
    assert "2.9" in caught.value.why
    assert "2.10" in caught.value.why
    assert caught.value == error_text


def test_a_pattern_selects_an_area_a_glob_or_a_part(error_text):
    tests = profiles.suite("full", TORCH).tests
    assert {checks.area_of(test) for test in profiles.select(tests, ["memory"])} == {"memory"}
    assert profiles.select(tests, ["operators/forward[add,float32]"]) == ["operators/forward[add,float32]"]
    assert len(profiles.select(tests, ["operators/forward[add,*]"])) > 5
    assert profiles.select(tests, ["string_round"]) == ["device/string_round_trip"]
    assert "operators/forward[mm,float32]" in profiles.select(tests, ["aten::mm"])
    assert not any("addmm" in test for test in profiles.select(tests, ["aten::mm.default"]))
    with pytest.raises(accelkit.UsageError) as caught:
        profiles.select(tests, ["no_such_check"])
    assert "'no_such_check'" in caught.value.what
    assert caught.value == error_text


@pytest.mark.parametrize(
    ("operator", "test"),
    [
        ("aten::add.Tensor", "operators/forward[add,float32]"),
        ("aten::masked_fill_", "operators/forward[masked_fill,float32]"),
        ("aten::div.Tensor", "operators/forward[div.no_rounding_mode,float32]"),
        ("aten::gelu_backward", "operators/forward[nn.functional.gelu,float32]"),
        ("aten::native_layer_norm_backward", "operators/forward[nn.functional.layer_norm,float32]"),
        ("aten::_softmax_backward_data", "operators/forward[softmax,float32]"),
        ("aten::max_pool2d_with_indices", "operators/forward[nn.functional.max_pool2d,float32]"),
        ("aten::convolution_backward", "operators/forward[nn.functional.conv2d,float32]"),
        ("aten::threshold_backward", "operators/forward[nn.functional.relu,float32]"),
    ],
)
def test_an_aten_operator_selects_the_tests_of_torchs_operator(operator, test):
    assert test in profiles.select(profiles.suite("training", TORCH).tests, [operator])


def test_an_aten_operator_selects_the_tests_of_all_its_variants():
    selected = profiles.select(profiles.suite("full", TORCH).tests, ["aten::linalg_pinv"])
    assert {"operators/forward[linalg.pinv,float32]", "operators/forward[linalg.pinv.hermitian,float32]"} <= set(selected)


def test_an_aten_operator_without_tests_is_refused():
    with pytest.raises(accelkit.UsageError, match="'aten::nothing_backward' matches no test"):
        profiles.select(profiles.suite("full", TORCH).tests, ["aten::nothing_backward"])


def test_listing_imports_no_torch():
    code = (
        "import sys\nfrom accelkit.cli import main\n"
        "try:\n    main(['conformance', 'list', '--profile', 'full'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'numpy', 'accelkit_builtin', 'accelkit_fake_xpu'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
