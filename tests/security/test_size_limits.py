"""What a package, an answer, a setting or a batch may measure: beyond it is a short error, or a cut with a remark."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import torch

import accelkit

TALKATIVE = """
import accelkit

class Acme(accelkit.Accelerator):
    @classmethod
    def probe(cls):
        return accelkit.Availability.absent("r" * 3_000_000, "h" * 3_000_000)
"""


def run(*arguments):
    command = [sys.executable, "-m", "accelkit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, timeout=200)


def test_a_long_reason_is_cut_and_says_so(plugin_site):
    plugin_site.install("acme-plugin", TALKATIVE, accelerators={"acme": "Acme"})
    result = run("probe", "acme", "--json")
    answer = json.loads(result.stdout)
    assert answer["why"] == "r" * 2000 + " … (cut: it has 3,000,000 characters)"
    assert answer["hint"] == "h" * 2000 + " … (cut: it has 3,000,000 characters)"
    printed = run("list")
    assert printed.returncode == 0
    assert len(printed.stdout) < 50_000


def test_a_long_summary_is_cut_and_says_so(plugin_site):
    plugin_site.install("acme-plugin", accelerators={"acme": "Acme"}, summary="s" * 1_000_000)
    (found,) = [record for record in accelkit.plugins("accelerator") if record.name == "acme"]
    assert found.description == "s" * 512 + " … (cut: it has 1,000,000 characters)"


def test_a_list_of_entry_points_that_is_too_long_is_not_read(plugin_site):
    lines = "\n".join(f"n{index} = acme_plugin:Acme{index}" for index in range(300_000))
    plugin_site.install("acme-plugin", entry_points=f"[accelkit.accelerators]\n{lines}")
    begun = time.monotonic()
    (found,) = [record for record in accelkit.plugins() if record.distribution == "acme-plugin"]
    assert found.status == "broken"
    assert "characters; the limit is 100,000" in found.reason
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("entry", ["n" * 5000 + " = acme_plugin:Acme", "acme = acme_plugin:" + "A" * 5000])
def test_a_long_name_is_broken_and_shown_short(plugin_site, entry):
    plugin_site.install("acme-plugin", entry_points=f"[accelkit.accelerators]\n{entry}")
    (found,) = [record for record in accelkit.plugins() if record.distribution == "acme-plugin"]
    assert found.status == "broken"
    assert "has more than 200 characters" in found.reason
    assert len(found.name) + len(found.value) + len(found.reason) < 700


def test_a_long_name_of_a_distribution_is_cut(plugin_site):
    info = plugin_site.install("acme-plugin", accelerators={"acme": "Acme"})
    (info / "METADATA").write_text(f"Metadata-Version: 2.3\nName: {'a' * 100_000}\nVersion: {'1' * 100_000}\n\n")
    accelkit.refresh()
    (found,) = [record for record in accelkit.plugins("accelerator") if record.name == "acme"]
    assert len(found.plugin) < 600


@pytest.mark.parametrize("text", ["9" * 5000, "0", "-1", "1e3", "٣", "1_000", " 2"])
def test_a_number_of_nodes_that_is_none(monkeypatch, text):
    monkeypatch.setenv("ACCELKIT_NUM_NODES", text)
    with pytest.raises(accelkit.UsageError, match="ACCELKIT_NUM_NODES") as raised:
        accelkit.Runtime("cpu")
    assert len(str(raised.value)) < 300


def nested(levels, leaf):
    for _ in range(levels):
        leaf = [leaf]
    return leaf


def test_a_batch_that_is_nested_too_deep():
    runtime = accelkit.Runtime("cpu")
    tensor = torch.ones(2)
    assert runtime.to_device(nested(100, tensor)) == nested(100, tensor)
    with pytest.raises(accelkit.UsageError, match="more than 100 levels deep"):
        runtime.to_device(nested(500, tensor))


def test_a_list_that_holds_itself():
    batch: list = [torch.ones(2)]
    batch.append(batch)
    with pytest.raises(accelkit.UsageError, match="a container may contain itself"):
        accelkit.Runtime("cpu").to_device(batch)


DOCTORED = """
import accelkit

class Acme(accelkit.Accelerator):
    @classmethod
    def probe(cls):
        return accelkit.Availability.usable("here")

    def doctor_checks(self):
        return {"driver": accelkit.Availability.broken("r" * 3_000_000, "h" * 3_000_000)}
"""


def test_a_long_reason_of_a_vendors_check_is_cut(plugin_site):
    plugin_site.install("acme-plugin", DOCTORED, accelerators={"acme": "Acme"})
    assert len(run("doctor", "acme").stdout) < 50_000


@pytest.mark.parametrize(
    "requirement",
    [
        'torch; os_name ~= "posix"',
        "torch>=" + "9" * 5000,
        "torch; " + "(" * 5000,
        "torch; " + "(" * 900,
        "!" * 1_000_000,
        "torch" + ">=999," * 100_000,
    ],
    ids=["marker", "digits", "parentheses", "some parentheses", "no requirement", "many bounds"],
)
def test_a_requirement_that_cannot_be_read_costs_its_own_row(plugin_site, requirement):
    plugin_site.install("acme-plugin", accelerators={"acme": "Acme"}, requires=[requirement])
    records = accelkit.plugins("accelerator")
    (found,) = [record for record in records if record.name == "acme"]
    assert found.status == "broken"
    assert len(found.reason) < 500
    assert "cpu" in {record.name for record in records}


def test_metadata_of_many_folded_lines_is_read_at_once(plugin_site):
    info = plugin_site.install("acme-plugin", accelerators={"acme": "Acme"})
    (info / "METADATA").write_text("Metadata-Version: 2.3\nName: acme-plugin\nVersion: 1.0\nSummary: a\n" + " b\n" * 1_000_000 + "\n")
    accelkit.refresh()
    begun = time.process_time()
    assert [record for record in accelkit.plugins("accelerator") if record.name == "acme"]
    assert time.process_time() - begun < 10
