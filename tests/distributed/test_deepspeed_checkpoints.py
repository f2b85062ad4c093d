"""save_state, load_state and resume with the strategy deepspeed, on real processes."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
import ranks

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None,
        reason="DS_BUILD_OPS=0 DS_ACCELERATOR=cpu pip install --no-build-isolation deepspeed",
    ),
]


def run(size, folder, *cases, **environ):
    for text in ranks.run("deepspeed_checkpoint_program.py", size, str(folder), *cases, environ=environ):
        assert text.count("done") == len(cases)


def test_a_job_that_resumes_computes_the_same_also_after_a_kill_during_a_save(tmp_path):
    environ = {"ON": "fake_xpu", "PRECISION": "bf16-mixed"}
    run(2, tmp_path, "straight=2", "straight=3", **environ)
    codes, texts = ranks.outcome("deepspeed_checkpoint_program.py", 2, str(tmp_path), "killed=2", environ=environ)
    assert codes == [0, -9], texts
    run(2, tmp_path, "resumed=2", "resumed=3", **environ)


MATRIX = [*itertools.product(("cpu", "fake_xpu"), ("32-true", "bf16-mixed", "16-mixed"), ("", "1"))]


@pytest.mark.soak
@pytest.mark.parametrize(("on", "precision", "offload"), MATRIX)
def test_every_stage_resumes_with_every_precision_with_and_without_offloading(on, precision, offload, tmp_path):
    environ = {"ON": on, "PRECISION": precision, "OFFLOAD": offload} | ({"DS_ACCELERATOR": "cpu"} if on == "cpu" else {})
    for case, offloads in ("straight", offload), ("resumed", offload), ("resumed", "1" if not offload else ""):
        run(2, tmp_path, *(f"{case}={stage}" for stage in (1, 2, 3)), **environ | {"OFFLOAD": offloads})


def test_what_cannot_be_loaded_or_saved_is_refused_before_anything_changes(tmp_path, error_text):
    run(2, tmp_path, "refusals=2")
    assert (tmp_path / "errors.txt").read_text() == error_text
