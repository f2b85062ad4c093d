"""Checkpoints with very many shards: each rank determines independently what it writes, and writes its own index."""

from __future__ import annotations

import os

import pytest
from test_distributed_checkpoint import run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")


@pytest.mark.parametrize("scenario", ["contents", "damage", "layouts_differ", "across_strategies_and_sizes"])
def test_an_index_for_each_rank(scenario, tmp_path):
    run("rank_indexes_program.py", scenario, tmp_path / "ckpt")
