"""Environment variables recorded in real jobs, and jobs that are generated from a description. This module does not import torch.

A plugin ships recordings and descriptions as JSON files in a folder ``sample_jobs`` in the package that contains its class.
``docs/vendors/cluster-environment.md`` describes the format.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelkit import PluginRecord
from accelkit.discovery.catalog import plugins

FOLDER = "sample_jobs"
SHAPES = ((1, 1), (1, 2), (2, 1), (2, 2), (3, 2))
"""The shapes of the generated jobs: the number of machines, and the number of processes on each machine."""
JOB_ID, PORT = 4711, 29511
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """One process of a job.

    Attributes:
        name: The name of the process. In a recorded job: the name of the JSON file, and the index of the process in this file. In a
            generated job: the name of the JSON file, the shape of the job and the rank.
        environ: The variables of the process, without those that contain the path of a file.
        files: The contents of the files to which variables of the process point. Each key is the name of a variable that contains the path
            of a file.
        expected: The expected values of the cluster environment's properties, and the name of the cluster environment under the key
            ``environment``. None marks a value that cannot be read before the processes join the process group. If there is a key
            ``error``, reading at least one property must raise an error whose text contains the value of this key.
        host: The name of the machine; empty unless the job is generated.
    """

    name: str
    environ: Mapping[str, str]
    files: Mapping[str, str]
    expected: Mapping[str, Any]
    host: str = ""

    @property
    def environment(self) -> str:
        """The name of the cluster environment to which the process belongs."""
        return str(self.expected["environment"])

    def with_files(self, folder: Path) -> dict[str, str]:
        """Write ``files`` to ``folder``, and return the environment variables of the process, with the paths of the written files."""
        paths = {variable: folder / f"{self.name}-{variable}" for variable in self.files}
        for variable, path in paths.items():
            path.write_text(self.files[variable], "utf-8")
        return {**self.environ, **{variable: str(path) for variable, path in paths.items()}}

    @contextlib.contextmanager
    def variables(self) -> Iterator[dict[str, str]]:
        """Context manager that yields all variables of the process.

        Some variables contain the path of a file. These files exist until the block ends.
        """
        if not self.files:
            yield dict(self.environ)
            return
        with tempfile.TemporaryDirectory(prefix="accelkit-recorded-") as folder:
            yield self.with_files(Path(folder))


@dataclasses.dataclass(frozen=True, slots=True)
class Description:
    """A description of a launcher's jobs, from which jobs of any size are generated.

    Attributes:
        name: The name of the file that contains the description, without its suffix.
        environ, files: As in ``Process``, with placeholders such as ``{global_rank}``.
        expected: As in ``Process``, with placeholders, but without the ranks and sizes, which ``process`` adds.
        shapes: The shapes of the jobs that the checks generate: the number of machines, and the number of processes on each machine. The
            launcher must be able to start jobs of these shapes.
    """

    name: str
    environ: Mapping[str, str]
    files: Mapping[str, str]
    expected: Mapping[str, str]
    shapes: Sequence[tuple[int, int]]

    def job(
        self, num_nodes: int, local_world_size: int, *, job_id: int = JOB_ID, port: int = PORT, hosts: Sequence[str] = ()
    ) -> list[Process]:
        """Return the processes of a job that is generated from this description, ordered by rank.

        Args:
            num_nodes: The number of machines.
            local_world_size: The number of processes on each machine.
            job_id: The value of the placeholder ``job_id``.
            port: The value of the placeholder ``port``.
            hosts: The names of the machines. If empty, the names are ``machine-0``, ``machine-1`` and so on.
        """
        hosts = hosts or [f"machine-{index}" for index in range(num_nodes)]
        size = num_nodes * local_world_size
        machines = [hosts[rank // local_world_size] for rank in range(size)]
        everyone = {
            "world_size": size,
            "local_world_size": local_world_size,
            "num_nodes": num_nodes,
            "job_id": job_id,
            "port": port,
            "main_host": hosts[0],
            "hosts": ",".join(hosts),
            "rank_hosts": ",".join(machines),
            "rank_addresses": ",".join(f"{host}:{port + 1 + rank}" for rank, host in enumerate(machines)),
        }
        return [
            self.process(
                f"{num_nodes}x{local_world_size}-{rank}",
                everyone
                | {"global_rank": rank, "local_rank": rank % local_world_size, "node_rank": rank // local_world_size, "host": host},
            )
            for rank, host in enumerate(machines)
        ]

    def process(self, name: str, values: Mapping[str, Any]) -> Process:
        """Return one process of a job: the description with ``values`` in place of its placeholders.

        The process is called ``<name of the description>-<name>``.

        Args:
            name: The shape of the job and the rank, such as ``2x2-3``.
            values: The values of the placeholders. They must include ``host``, the ranks of the process, and the numbers of
                processes and nodes.
        """
        told = ("world_size", "global_rank", "local_rank", "local_world_size", "node_rank", "num_nodes")
        expected = {key: _filled(value, values) if isinstance(value, str) else value for key, value in self.expected.items()}
        return Process(
            f"{self.name}-{name}",
            {key: _filled(text, values) for key, text in self.environ.items()},
            {key: _filled(text, values) for key, text in self.files.items()},
            {**{key: values[key] for key in told}, **expected},
            str(values["host"]),
        )


def _filled(text: str, values: Mapping[str, Any]) -> str:
    return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), text)


def folder_of(cls: type) -> Path | None:
    """Return the first folder ``sample_jobs`` in the packages of the class and its base classes, in the order of the MRO; None if there is
    none."""
    for one in cls.__mro__:
        for name in (one.__module__, one.__module__.rpartition(".")[0]):
            module = sys.modules.get(name)
            for place in getattr(module, "__path__", ()):
                if (Path(place) / FOLDER).is_dir():
                    return Path(place) / FOLDER
    return None


@functools.cache
def read(folder: Path) -> tuple[tuple[Process, ...], tuple[Description, ...]]:
    """Return the recorded processes and the descriptions in a folder, ordered by the names of the files.

    Raises:
        AssertionError: If a file does not have the right format.
    """
    processes: list[Process] = []
    descriptions: list[Description] = []
    for path in sorted(folder.glob("*.json")):
        try:
            fields = json.loads(path.read_text("utf-8"))
            files = dict(fields.get("files", {}))
            for index, one in enumerate(fields.get("processes", ())):
                processes.append(Process(f"{path.stem}-{index}", dict(one["environ"]), files, {**one["expected"]}))
                _ = processes[-1].environment
            if "job" in fields:
                shapes = tuple((nodes, local) for nodes, local in fields.get("shapes", SHAPES))
                expected = {**fields.get("expected", {}), "environment": fields["environment"]}
                descriptions.append(Description(path.stem, dict(fields["job"]), files, expected, shapes))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise AssertionError(f"{path} cannot be read as a recording: {type(error).__name__}: {error}") from error
    return tuple(processes), tuple(descriptions)


def builtin_processes() -> list[Process]:
    """Return the recorded processes of accelkit's own cluster environments."""
    own = next(record for record in plugins("cluster") if record.is_builtin)
    folder = folder_of(_class_of(own))
    assert folder is not None, "accelkit is not completely installed: its recorded environments are missing"
    return list(read(folder)[0])


def _class_of(record: PluginRecord) -> type:
    module, _, name = record.value.partition(":")
    found: type = getattr(importlib.import_module(module), name)
    return found


def jobs(processes: Sequence[Process]) -> list[list[Process]]:
    """Return the jobs whose processes have all been recorded.

    Processes in the same file with the same job id form a job. The processes of a job are ordered by rank, except in jobs whose ranks are
    not known until the processes have joined the process group. The processes of such a job are in the same order as in the file.
    """
    groups: dict[tuple[str, str], list[Process]] = {}
    for one in processes:
        if "world_size" in one.expected:
            groups.setdefault((one.name.rpartition("-")[0], str(one.expected.get("job_id"))), []).append(one)
    whole = [group for group in groups.values() if len(group) == group[0].expected["world_size"]]
    return [sorted(group, key=_rank) for group in whole]


def _rank(process: Process) -> int:
    rank = process.expected.get("global_rank")
    return rank if isinstance(rank, int) else 0  # None if the rank cannot be read before the processes join
