"""The mutation scores on the page about conformance."""

from __future__ import annotations

from accelkit_conformance import mutation_scores, selftest
from accelkit_conformance.mutants import Mutant
from accelkit_conformance.selftest import Autopsy


def matrix(seed, *verdicts):
    ids = [f"generated[add,{axis},{index}]" for index, (axis, _) in enumerate(verdicts)]
    outcomes = [
        {"id": name, "axis": axis, "area": "operators", "verdict": verdict} for name, (axis, verdict) in zip(ids, verdicts, strict=True)
    ]
    return {"seed": seed, "generated": outcomes}


def test_samples_are_counted_by_axis_and_a_seed_is_replaced():
    scores = {}
    mutation_scores.update(scores, matrix(2, ("nan", "survived")))
    mutation_scores.update(scores, matrix(10, ("nan", "killed"), ("nan", "survived"), ("dtype", "not triggered")))
    mutation_scores.update(scores, matrix(2, ("nan", "killed")))
    lines = mutation_scores.section(scores)
    assert "| fault | seed 2 | seed 10 | detected | not triggered | detected, of those triggered |" in lines
    assert "| `nan` | 1 of 1 | 1 of 2 | 67 % | 0 | 67 % |" in lines
    assert "| `dtype` |  | 0 of 1 | 0 % | 1 |  |" in lines
    assert "| all | 1 of 1 | 1 of 3 | 50 % | 1 | 67 % |" in lines
    assert max(map(len, lines)) <= 100


def test_there_is_no_section_without_scores(tmp_path):
    assert mutation_scores.section(mutation_scores.read(tmp_path / "none.json")) == []


def test_a_profile_counts_the_mutants_that_its_tests_of_the_area_detect():
    def autopsy(name, *killers):
        return Autopsy(Mutant(name, "operators", "m", "x:Y", "wrong"), dict.fromkeys(killers, "fail"), 3)

    elsewhere = autopsy("a", "memory/peak_resets")
    in_smoke = autopsy("b", "operators/forward[add,float32]", "operators/forward[acos,float32]")
    in_training = autopsy("c", "operators/forward[acos,float32]")
    (row,) = selftest.scores([elsewhere, in_smoke, in_training])
    assert row == {
        "kind": "accelerator",
        "area": "operators",
        "mutants": 3,
        "contract": 0,
        "smoke": 1,
        "training": 2,
        "distributed": 2,
        "full": 2,
    }
    scores = {}
    mutation_scores.update(scores, {"scores": [row]})
    assert "| accelerator | operators | 3 | 1 | 2 | 2 | 2 |" in mutation_scores.section(scores)


def test_each_kind_of_plugin_has_its_scores_and_an_area_is_replaced():
    def autopsy(name, kind, area, *killers):
        return Autopsy(Mutant(name, area, "m", "x:Y", "wrong", kind, "slurm"), dict.fromkeys(killers, "fail"), 3)

    ranks = autopsy("a", "cluster", "cluster_ranks", "cluster_ranks/ranks_are_below_sizes")
    scores = {}
    mutation_scores.update(scores, {"scores": selftest.scores([ranks])})
    mutation_scores.update(
        scores, {"scores": selftest.scores([autopsy("b", "hooks", "hooks_calls", "hooks_order/wrappers_pass_results_on")])}
    )
    assert [mutation_scores.detected(scores, kind) for kind in ("cluster", "hooks", "precision")] == [(1, 1), (1, 0), (0, 0)]
    mutation_scores.update(scores, {"scores": selftest.scores([ranks, autopsy("c", "cluster", "cluster_ranks")])})
    assert [mutation_scores.detected(scores, kind) for kind in ("cluster", "hooks", "precision")] == [(2, 1), (1, 0), (0, 0)]
