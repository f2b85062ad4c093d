"""A scheduler whose length was taken before prepare: prepare warns, with the numbers and what to do. A right length is not warned of."""

from __future__ import annotations

import json

import pytest
import ranks

RIGHT = ("prepared", "cosine from prepared", "by epoch", "divided", "other loader", "split")
WRONG = ("unprepared", "cosine", "odd", "one epoch")


@pytest.fixture(scope="module")
def job():
    """The last learning rate and the warnings of every case, on each of two ranks."""
    texts = ranks.run("scheduler_length_program.py", 2, *RIGHT, *WRONG)
    found = [[json.loads(line.partition("result: ")[2]) for line in text.splitlines() if line.startswith("result: ")] for text in texts]
    return [{case: rest for case, *rest in rank} for rank in found]


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_length_is_not_warned_of(job, case):
    assert [rank[case][1] for rank in job] == [[], []]
    if case not in ("by epoch", "other loader"):
        assert job[0][case][0] < 5e-3, "the schedule reaches its end"


@pytest.mark.parametrize("case", WRONG)
def test_a_length_taken_before_prepare_is_warned_of_once_in_the_job(job, case):
    (last, texts, files), (_, of_rank_1, _) = (rank[case] for rank in job)
    assert last > 1e-2, "the schedule does not reach its end"
    assert len(texts) == 1
    assert of_rank_1 == []
    assert files[0].endswith("scheduler_length_program.py")


def test_the_warning_names_the_numbers_and_what_to_do(job):
    text = job[0]["unprepared"][1][0]
    for part in (
        "OneCycleLR has total_steps=24",
        "2 x 12",
        "divided among 2 processes, and each gets 6",
        "2 epochs have 12 steps",
        "len(loader)",
    ):
        assert part in text
    assert "CosineAnnealingLR has T_max=24" in job[0]["cosine"][1][0]
    assert "18" in job[0]["odd"][1][0]
    assert "each gets 5" in job[0]["odd"][1][0]
    assert "1 epoch has 6 steps" in job[0]["one epoch"][1][0]
