"""FSDP2 inside Accelerate, on two devices of the fake XPU: the weights of one CPU that trains on the batches of both."""

from __future__ import annotations

import pytest
from programs import LAUNCHERS, run

NAMES = sorted(f"{layer}.{name}" for layer in ("head", "layers.0", "layers.1", "layers.2") for name in ("weight", "bias"))


@pytest.mark.parametrize(
    ("mixed", "kind", "options"),
    [
        ("no", "FULL_STATE_DICT", ()),
        ("bf16", "FULL_STATE_DICT", ("cpu_ram_efficient_loading",)),
        # Accelerate 1.10 cannot load the optimizer of a sharded checkpoint.
        pytest.param("no", "SHARDED_STATE_DICT", (), marks=pytest.mark.newest_peers),
        pytest.param("no", "SHARDED_STATE_DICT", ("activation_checkpointing", "cpu_offload"), marks=pytest.mark.soak),
    ],
)
def test_it_trains_and_goes_on_from_a_checkpoint_alike(mixed, kind, options, tmp_path):
    program = ("accelerate_sharded_program.py", mixed, kind, tmp_path, *options)
    ranks = sorted(run(*program, launcher=LAUNCHERS["accelkit launch"], name="fake_xpu"), key=lambda seen: seen["rank"])
    hosts = ["cpu"] if "cpu_offload" in options else []
    assert [seen["devices"] for seen in ranks] == [[*hosts, "fake_xpu:0"], [*hosts, "fake_xpu:1"]]
    assert [seen["local"] for seen in ranks] == [[2, 2] * 3 + [1, 1], [2, 2] * 3 + [0, 0]], "each has half of the rows"
    assert all(seen["difference"] < (1e-6 if mixed == "no" else 0.1) for seen in ranks)
    assert all(seen["resumed alike"] for seen in ranks)
    assert ranks[0]["names"] == NAMES


def test_two_copies_of_a_sharded_model(tmp_path):
    """HSDP, on four devices."""
    launcher = [word.replace("2", "4") for word in LAUNCHERS["accelkit launch"]]
    program = ("accelerate_sharded_program.py", "no", "FULL_STATE_DICT", tmp_path, "hybrid")
    ranks = sorted(run(*program, launcher=launcher, name="fake_xpu", FAKE_XPU_DEVICES="4"), key=lambda seen: seen["rank"])
    assert [seen["devices"] for seen in ranks] == [[f"fake_xpu:{rank}"] for rank in range(4)]
    assert [seen["local"] for seen in ranks] == [[2, 2] * 3 + [1, 1], [2, 2] * 3 + [0, 0]] * 2
    assert all(seen["difference"] < 1e-6 for seen in ranks)
    assert all(seen["resumed alike"] for seen in ranks)
    assert ranks[0]["names"] == NAMES
