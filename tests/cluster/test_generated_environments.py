"""Generated environments: each parser gives an answer that makes sense, or an AccelkitError; never another exception."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accelkit
from accelkit.cluster.detection import SETTINGS
from accelkit_builtin.clusters.kubeflow import KubeflowEnvironment
from accelkit_builtin.clusters.local import LocalEnvironment
from accelkit_builtin.clusters.lsf import LSFEnvironment
from accelkit_builtin.clusters.mpi import MPIEnvironment
from accelkit_builtin.clusters.ray import RayEnvironment
from accelkit_builtin.clusters.slurm import SlurmEnvironment
from accelkit_builtin.clusters.torchelastic import TorchElasticEnvironment
from accelkit_conformance.oracle.cluster_recordings import builtin_processes

pytestmark = pytest.mark.filterwarnings("ignore:.*is not set; the cluster environment:RuntimeWarning")

CLASSES = {
    "kubeflow": KubeflowEnvironment, "local": LocalEnvironment, "lsf": LSFEnvironment, "mpi": MPIEnvironment, "ray": RayEnvironment,
    "slurm": SlurmEnvironment, "torchelastic": TorchElasticEnvironment,
}  # fmt: skip
RECORDED = builtin_processes()
NAMES = sorted(
    {name for recording in RECORDED for name in [*recording.environ, *recording.files]} | {"MASTER_ADDR", "MASTER_PORT", "SLURM_HET_JOB_ID"}
)
MANGLED = [
    "", " ", "0", "1", "2", "3", "-1", "+2", " 2 ", "1.0", "1e3", "0x10", "abc", "²", "٣", "9" * 30, "9" * 5000, "65535", "65536",
    "4294967294", "none", "null", "(null)", "2(x2)", "2(x2),1", "2(x", "(x2)", "1(x999999999)", "2,,1", "n[0-1]", "n[0-1", "n]", "n[1-0]",
    "n[a]", "n[1-2]x", ",", "a b", "a\nb", "[::1]", "::1", "a;rm -rf", "\x1b[31m", "host:1", "22001-22003", "22003-22001", "0-99999999",
    "n[0-99999999999]", "1:4", "auto", "/", "/nowhere/ranks", "\udc80",
]  # fmt: skip


def generate(name: str, seed: int, folder: Path) -> tuple[dict[str, str], int | None, int | None]:
    """A recorded environment (mostly of the one tried) with variables left out, replaced and added; and what a user may have said.

    From one number, as hypothesis takes four times as long to draw each part: the number is what it shows of a failure.
    """
    draw = random.Random(seed)
    own = [one for one in RECORDED if one.expected["environment"] == name]
    base = {} if draw.random() < 0.05 else draw.choice(own if draw.random() < 0.8 else RECORDED).with_files(folder)
    for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 5))):
        variable = draw.choice([*base, *base, draw.choice(NAMES)])
        text = "".join(map(chr, draw.choices(range(1, 0x250), k=draw.randrange(6))))
        value = draw.choice([None, text, draw.choice(MANGLED), draw.choice(MANGLED)])
        base.pop(variable, None)
        if value is not None:
            base[variable] = value
    said = [None, *range(6)]
    return base, draw.choice(said), draw.choice(said)


def sense(environment: accelkit.ClusterEnvironment, num_devices: int | None, num_nodes: int | None) -> None:
    """Read everything. What is answered must make sense together."""
    told, errors = {}, []
    for name in SETTINGS:
        try:
            told[name] = getattr(environment, name)
        except accelkit.AccelkitError as error:
            errors.append(error)
    for said in ((num_devices, num_nodes), (None, None)):
        try:
            environment.validate_settings(*said)
        except accelkit.AccelkitError as error:
            errors.append(error)
    assert all(error.what and error.why and error.hint for error in errors), errors
    for rank, size in (("global_rank", "world_size"), ("local_rank", "local_world_size"), ("node_rank", "num_nodes")):
        if rank in told and size in told:
            assert 0 <= told[rank] < told[size], (rank, told)
    if "local_world_size" in told and "world_size" in told:
        assert 1 <= told["local_world_size"] <= told["world_size"], told
    if "main_port" in told:
        assert 0 < told["main_port"] < 65536, told
    if "main_address" in told:
        assert told["main_address"], told
        assert not set(told["main_address"]) & set(" \n[];"), told
    assert told["creates_processes_externally"] is (type(environment) is not LocalEnvironment)


@pytest.mark.parametrize("examples", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_mangled_environment_gives_an_answer_or_a_clear_error(name, examples, tmp_path):
    cls = CLASSES[name]
    answered = refused = 0

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(min_value=0, max_value=2**48))
    def check(seed):
        nonlocal answered, refused
        environ, num_devices, num_nodes = generate(name, seed, tmp_path)
        before = dict(environ)
        environment = cls(environ)
        environment.name, environment.plugin = name, "accelkit==0"
        claim = environment.detect_cluster(environ)
        assert claim is None or (claim.name == name and claim.reason), claim
        sense(environment, num_devices, num_nodes)
        assert environ == before, "reading changed the environment"
        try:
            _ = environment.global_rank
            answered += 1
        except accelkit.AccelkitError:
            refused += 1

    check()
    assert answered > 100
    assert refused > 100 or name == "local", "nothing was mangled"


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_variable_that_is_no_number_is_named_with_its_value(name, tmp_path):
    """For every variable that is a number in a recording of this environment, and that it reads."""
    named = []
    for recording in RECORDED:
        if recording.expected["environment"] != name or "error" in recording.expected:
            continue
        good = recording.with_files(tmp_path)
        for key in [key for key, value in good.items() if value.isdigit()]:
            environment = CLASSES[name](good | {key: "abc"})
            environment.name = name
            for setting in [setting for setting in SETTINGS if recording.expected.get(setting) is not None]:
                try:
                    getattr(environment, setting)
                except accelkit.UsageError as error:
                    named.append((key, str(error)))
    assert len(named) > 10 or name == "local"
    for key, text in named:
        assert key in text, text
        assert "abc" in text, text
