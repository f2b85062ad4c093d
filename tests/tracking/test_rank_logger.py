"""accelkit.get_logger. The test of several processes is tests/distributed/test_tracking.py."""

from __future__ import annotations

import logging
import subprocess
import sys

import accelkit

CODE = """
import logging, sys
from accelkit import get_logger
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(name)s:%(lineno)d:%(message)s")
log = get_logger("mine")
log.info("main only")
log.info("everywhere", main_process_only=False)
print("torch" in sys.modules)
try:
    log.info("one after another", in_order=True)
except Exception as error:
    print(error)
"""


def test_before_a_runtime_the_rank_is_that_of_the_launcher_and_torch_is_not_imported(monkeypatch, error_text):
    variables = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    for name, value in (variables | {"MASTER_ADDR": "localhost", "MASTER_PORT": 1, "TORCHELASTIC_RUN_ID": "test"}).items():
        monkeypatch.setenv(name, str(value))
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    everywhere, has_torch, *error = result.stdout.splitlines()
    assert everywhere == "mine:7:[rank 1] everywhere"
    assert has_torch == "False"
    assert "\n".join(error) == error_text


def test_a_warning_that_was_disabled_is_logged_later(caplog):
    accelkit.Runtime("cpu")
    log = accelkit.get_logger("mine", log_level="error")
    try:
        log.warning_once("once")
        log.setLevel(logging.WARNING)
        for _ in range(2):
            log.warning_once("once")
    finally:
        log.setLevel(logging.NOTSET)
    assert [record.message for record in caplog.records] == ["once"]


def test_one_process_logs_as_usual(caplog):
    accelkit.Runtime("cpu")
    log = accelkit.get_logger("mine", log_level="debug")
    try:
        assert log.logger.level == logging.DEBUG
        log.debug("value %d", 3)
        log.info("in order", in_order=True)
        for _ in range(2):
            log.warning_once("once")
    finally:
        log.setLevel(logging.NOTSET)
    assert [(record.message, record.levelname, record.filename) for record in caplog.records] == [
        ("value 3", "DEBUG", "test_rank_logger.py"),
        ("in order", "INFO", "test_rank_logger.py"),
        ("once", "WARNING", "test_rank_logger.py"),
    ]
