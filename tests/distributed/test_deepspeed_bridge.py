"""DeepSpeed on the devices of plugins: what it is told about them, and programs that call DeepSpeed themselves."""

from __future__ import annotations

import importlib.util

import pytest
import ranks

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]


@pytest.mark.parametrize("case", ["answers", "answers_of_a_host"])
def test_deepspeed_is_told_what_the_plugin_says(case):
    (text,) = ranks.run("deepspeed_bridge_program.py", 1, case, environ={"FAKE_XPU_DEVICES": "2"})
    assert text.count("done") == 1


def test_a_program_that_calls_deepspeed_itself_trains_on_the_plugins_device():
    for text in ranks.run("deepspeed_bridge_program.py", 2, "script"):
        assert text.count("done") == 1


def test_a_device_without_streams_and_a_process_group_backend_trains():
    for text in ranks.run("deepspeed_bridge_program.py", 2, "simple"):
        assert text.count("done") == 1


def test_a_converted_checkpoint_is_loaded_by_another_number_of_processes(tmp_path):
    for size, case in (2, "two_save"), (1, "one_loads"):
        for text in ranks.run("deepspeed_bridge_program.py", size, case, str(tmp_path)):
            assert text.count("done") == 1, text


def test_what_cannot_be_done_is_refused():
    (text,) = ranks.run("deepspeed_bridge_program.py", 1, "refusals")
    assert text.count("done") == 1
