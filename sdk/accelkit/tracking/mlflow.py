"""The tracker ``mlflow``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelkit.tracking.tracker import Outcome, Scalar, Tracker
from accelkit.tracking.values import flat

if TYPE_CHECKING:
    from mlflow import MlflowClient

_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_PARAMS_PER_CALL = 100
_LONGEST_PARAM = 6000
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


class MLflow(Tracker):
    """A tracker that records the run in MLflow.

    The tracker needs the package ``mlflow``. If a tracking server stores the run, ``mlflow-skinny`` is enough.

    Numbers become metrics, strings become tags, and hyperparameters become parameters, with names such as ``model/depth``. Characters
    that MLflow does not allow in names are replaced by ``_``.

    If a program continues from a checkpoint, the same MLflow run is continued. Metrics that were recorded after the checkpoint stay in the
    run, because MLflow cannot remove them. If the program repeats the steps of these metrics, the metrics are not recorded a second time.
    A parameter keeps the first value that was logged, because MLflow does not let a parameter change.

    Args:
        experiment: The name of the experiment, which is created if it does not exist. None means ``MLFLOW_EXPERIMENT_NAME``, or else the
            experiment ``Default``.
        run_name: The name of the run. None lets MLflow choose one.
        tracking_uri: The server, folder or database. None means ``MLFLOW_TRACKING_URI``, or else MLflow's default.
        tags: Tags of the run.

    Attributes:
        client: The ``MlflowClient``, for artifacts and models. None before the first ``rt.log``.
        run_id: The id of the run. An empty string before the first ``rt.log``.
    """

    name = "mlflow"
    package = "mlflow"
    module = "mlflow"

    def __init__(
        self,
        experiment: str | None = None,
        *,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.client: MlflowClient | None = None
        self.run_id = ""
        self._experiment, self._run_name, self._tracking_uri, self._tags = experiment, run_name, tracking_uri, tags
        self._is_continued = False
        self._recorded: dict[str, int] = {}

    def open(self, state: Mapping[str, Any] | None) -> None:
        from mlflow import MlflowClient

        self.client = client = MlflowClient(self._tracking_uri)
        self._recorded, self._is_continued = {}, state is not None
        if state is not None:
            self.run_id = state["run_id"]
            client.update_run(self.run_id, status="RUNNING")
        else:
            self.run_id = client.create_run(self._experiment_id(client), run_name=self._run_name, tags=dict(self._tags or {})).info.run_id

    def log(self, values: Mapping[str, Scalar], step: int) -> None:
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        named = {_NOT_IN_NAMES.sub("_", name): value for name, value in values.items()}
        tags = [RunTag(name, value) for name, value in named.items() if isinstance(value, str)]
        metrics = [
            Metric(name, float(value), now, step)
            for name, value in named.items()
            if not isinstance(value, str) and not self._is_recorded(name, step)
        ]
        if metrics or tags:
            self._batch(metrics=metrics, tags=tags)

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        assert self.client is not None
        known = self.client.get_run(self.run_id).data.params
        named = {_NOT_IN_NAMES.sub("_", name): str(value)[:_LONGEST_PARAM] for name, value in flat(values).items()}
        params = [Param(name, value) for name, value in named.items() if name not in known]
        for start in range(0, len(params), _PARAMS_PER_CALL):
            self._batch(params=params[start : start + _PARAMS_PER_CALL])

    def close(self, outcome: Outcome) -> None:
        if self.client is not None:
            self.client.set_terminated(self.run_id, _STATUS[outcome])

    def state(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def _experiment_id(self, client: MlflowClient) -> str:
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        experiment = client.get_experiment_by_name(name)
        found: str = experiment.experiment_id if experiment is not None else client.create_experiment(name)
        return found

    def _is_recorded(self, name: str, step: int) -> bool:
        """Return whether a continued run already contains this metric, at ``step`` or at a later step. False for a new run.

        Values of the metric that this process has recorded since ``open`` are not considered.
        """
        if not self._is_continued:
            return False
        if name not in self._recorded:
            assert self.client is not None
            history = self.client.get_metric_history(self.run_id, name)
            self._recorded[name] = max((metric.step for metric in history), default=-1)
        return step <= self._recorded[name]

    def _batch(self, **what: Any) -> None:
        assert self.client is not None
        self.client.log_batch(self.run_id, **what)
