"""The mutation scores on the page about conformance."""

from __future__ import annotations

from accelkit_conformance import mutation_scores
from accelkit_conformance.mutants import Mutant


def matrix(seed, *verdicts):
    ids = [f"generated[add,{axis},{index}]" for index, (axis, _) in enumerate(verdicts)]
    outcomes = [
        {"id": name, "axis": axis, "area": "operators", "verdict": verdict} for name, (axis, verdict) in zip(ids, verdicts, strict=True)
    ]
    return {"seed": seed, "generated": outcomes}


def test_samples_are_counted_by_axis_and_a_seed_is_replaced():
    outcomes = {}
    mutation_scores.update(outcomes, matrix(2, ("nan", "survived")))
    mutation_scores.update(outcomes, matrix(10, ("nan", "killed"), ("nan", "survived"), ("dtype", "not triggered")))
    mutation_scores.update(outcomes, matrix(2, ("nan", "killed")))
    lines = mutation_scores.section([], outcomes)
    assert "| fault | seed 2 | seed 10 | detected | not triggered | detected, of those triggered |" in lines
    assert "| `nan` | 1 of 1 | 1 of 2 | 67 % | 0 | 67 % |" in lines
    assert "| `dtype` |  | 0 of 1 | 0 % | 1 |  |" in lines
    assert "| all | 1 of 1 | 1 of 3 | 50 % | 1 | 67 % |" in lines
    assert max(map(len, lines)) <= 100


def mutant(name, kind="accelerator", area="operators"):
    return Mutant(name, area, "m", "x:Y", "wrong", kind)


def test_a_profile_counts_the_mutants_that_its_tests_of_the_area_detect():
    elsewhere = (mutant("a"), ["memory/peak_resets"])
    in_smoke = (mutant("b"), ["operators/forward[add,float32]", "operators/forward[acos,float32]"])
    in_training = (mutant("c"), ["operators/forward[acos,float32]"])
    (row,) = mutation_scores.rows([elsewhere, in_smoke, in_training])
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
    assert "| accelerator | operators | 3 | 1 | 2 | 2 | 2 |" in mutation_scores.section([row], {})


def test_each_kind_of_plugin_has_its_scores():
    ranks = (mutant("a", "cluster", "cluster_ranks"), ["cluster_ranks/ranks_are_below_sizes"])
    survivor = (mutant("b", "cluster", "cluster_ranks"), [])
    calls = (mutant("c", "hooks", "hooks_calls"), ["hooks_order/wrappers_pass_results_on"])
    scores = [(row["kind"], row["area"], row["mutants"], row["full"]) for row in mutation_scores.rows([calls, ranks, survivor])]
    assert scores == [("cluster", "cluster_ranks", 2, 1), ("hooks", "hooks_calls", 1, 0)]


def test_the_test_in_the_smallest_profile_is_recorded_and_a_survivor_has_none():
    def ran(name, *killers):
        return {"name": name, "kind": "accelerator", "area": "operators", "killers": dict.fromkeys(killers, "fail")}

    smallest = "operators/forward[add,float32]"
    outcomes = {"killers": {"kept": "operators/forward[acos,float32]", "survivor": smallest}}
    found = ran("found", "memory/peak_resets", "operators/forward[acos,float32]", smallest)
    mutation_scores.update(outcomes, {"mutants": [found, ran("survivor", "memory/peak_resets")]})
    assert outcomes["killers"] == {"found": smallest, "kept": "operators/forward[acos,float32]", "survivor": None}
