"""A killed run that continues has one continuous curve in MLflow. Its package needs an older importlib-metadata than other tests use."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "tracking" / "resumed_program.py"
READ = """
import json
from mlflow import MlflowClient
client = MlflowClient()
(run,) = client.search_runs(["0"])
history = client.get_metric_history(run.info.run_id, "loss")
print(json.dumps([run.info.status, run.data.params, [[metric.step, metric.value] for metric in history]]))
"""


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed: make test-bridges-oldest has it")
def test_a_killed_run_continues_in_mlflow(tmp_path):
    environ = os.environ | {"MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}

    def run(*command):
        return subprocess.run([sys.executable, *command], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run(str(PROGRAM), "7", "mlflow").returncode == -signal.SIGKILL
    assert run(str(PROGRAM), "-1", "mlflow").stdout == "finished\n"
    status, params, history = json.loads(run("-c", READ).stdout.splitlines()[-1])
    assert status == "FINISHED"
    assert (params["model/depth"], params["accelkit/accelerator"]) == ("2", "cpu")
    assert history == [[step, step if step <= 7 else step + 100] for step in range(10)]
