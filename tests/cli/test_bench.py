"""accelkit bench: results, their units and limits, what a device lacks, and plugins that fail while they are measured."""

from __future__ import annotations

import json

import pytest
from command_runner import command_runner

from accelkit import BrokenPluginError, UsageError
from accelkit.benchmarking.compare import compare
from accelkit.benchmarking.report import Samples
from accelkit.benchmarking.run import measure
from accelkit.cli import main
from accelkit.selection import resolve

pytestmark = pytest.mark.usefixtures("forked_interpreters")

PLUGIN = """
import os, time
from accelkit import Accelerator, Capabilities

class Some(Accelerator):
    device_type = "cpu"
    is_simulated = True

    def capabilities(self, device=None):
        return Capabilities.declare(none=["dtype.float64"])

    def synchronize(self, device):
        {body}
"""
UNITS = {"launch": "us", "copy": "GB/s", "matmul": "GFLOP/s", "reduction": "GB/s", "training": "samples/s", "collective": "GB/s"}


def plugin(site, body="pass"):
    site.install("vendor-some", PLUGIN.format(body=body), accelerators={"some": "Some"})
    return resolve("some")


def results_of(record, select, **options):
    names = []
    report = measure(record, is_quick=True, select=select, report_progress=lambda name, *_: names.append(name), **options)
    assert [result.name for result in report.results] == names
    return report, {result.name: result for result in report.results}


@pytest.mark.smoke
def test_results_have_units_samples_the_cpu_and_limits():
    report, results = results_of(resolve("fake_xpu"), "[!o]*")
    assert (report.name, report.device, report.is_quick) == ("fake_xpu", "fake_xpu:0", True)
    groups = {name.partition(".")[0] for name in results}
    assert groups == {*UNITS, "attention", "convolution"}
    for name, result in results.items():
        if result.device is None:  # on a machine that is so busy that the measured peaks are too low
            assert result.unsupported.startswith("not measured: one call is expected to take"), result
            continue
        assert result.unit == UNITS.get(name.partition(".")[0], "GFLOP/s")
        assert min(result.device.values) > 0
        assert min(result.device.values) <= result.device.median <= max(result.device.values)
        assert 3 <= result.device.count == len(result.device.values)
        assert (result.limit is None) == name.startswith(("launch", "collective"))
        if "pinned" in name or "peer" in name:
            assert result.host is None
    fastest = max(result.device.median for name, result in results.items() if name.startswith("matmul.float32") and result.device)
    assert report.peaks["float32"] == pytest.approx(fastest * 1e9)
    assert results["launch.add"].host.median > 0
    for name in ("matmul.float32.256", "training.mlp"):
        assert results[name].device is None or 0 < results[name].limit <= report.peaks["float32"]


def test_a_slow_device_is_measured_as_slow_and_the_comparison_finds_it(monkeypatch):
    fast, by_name = results_of(resolve("fake_xpu"), "copy.host_to_device.4KiB")
    monkeypatch.setenv("FAKE_XPU_FAULT", "slow_copy@20")
    slow, slow_by_name = results_of(resolve("fake_xpu"), "copy.host_to_device.4KiB")
    (name,) = by_name
    assert max(slow_by_name[name].device.values) <= 4096 / 0.02 / 1e9  # a copy takes 20 ms or more
    assert by_name[name].device.median > 10 * slow_by_name[name].device.median
    assert [change.verdict for change in compare(fast, slow, 0.05)] == ["slower"]
    assert [change.verdict for change in compare(slow, fast, 0.05)] == ["faster"]


def test_collectives_are_measured_between_processes():
    results = results_of(resolve("cpu"), "collective.*.4KiB", ranks=3)[1]
    assert list(results) == [f"collective.{kind}.3_ranks.4KiB" for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")]
    for result in results.values():
        assert result.device is not None, result
        assert min(result.device.values) > 0
        assert (result.host, result.limit) == (None, None)


def test_a_collective_needs_a_device_for_each_process():
    for result in results_of(resolve("fake_xpu"), "collective.*", ranks=99)[1].values():
        assert result.device is None
        assert result.unsupported.startswith("99 processes: ")
        assert "devices=99" in result.unsupported


def test_processes_that_fail_are_the_reason(plugin_site):
    two = (
        PLUGIN.format(body="pass") + "    process_group_backend = 'carrier_pigeon'\n\n    def auto_device_count(self):\n        return 2\n"
    )
    plugin_site.install("vendor-two", two, accelerators={"two": "Some"})
    results = results_of(resolve("two"), "collective.broadcast.*")[1]
    assert len(results) == 2
    for result in results.values():
        assert result.device is None
        assert "rank" in result.unsupported
        assert "carrier_pigeon" in result.unsupported


def test_processes_that_hang_do_not_end_the_run(plugin_site):
    hangs = PLUGIN.format(body="if os.environ.get('WORLD_SIZE') == '2': time.sleep(600)")
    plugin_site.install("vendor-two", hangs + "\n    def auto_device_count(self):\n        return 2\n", accelerators={"two": "Some"})
    for result in results_of(resolve("two"), "collective.broadcast.*", seconds=40.0)[1].values():
        assert (result.device, result.unsupported) == (None, "2 processes: they took longer than 20 s")


def test_copies_between_devices_need_two(monkeypatch):
    both = results_of(resolve("fake_xpu"), "copy.peer.*")
    assert both[0].peaks["device to device"] == max(result.device.median for result in both[1].values()) * 1e9
    monkeypatch.setenv("FAKE_XPU_DEVICES", "1")
    for name in ("cpu", "fake_xpu"):
        for result in results_of(resolve(name), "copy.peer.*")[1].values():
            assert (result.device, result.unsupported) == (None, "there is only one device")


def test_overlap_needs_streams():
    overlap = results_of(resolve("fake_xpu"), "overlap.*")[1]["overlap.copy_and_matmul"]
    assert overlap.device is not None
    assert (overlap.unit, overlap.limit, overlap.host) == ("%", 100.0, None)


def test_what_a_device_lacks_is_reported_with_the_reason(plugin_site):
    results = results_of(plugin(plugin_site), "matmul.*.64")[1]
    assert results["matmul.float64.64"].device is None
    assert results["matmul.float64.64"].unsupported == "the plugin declares dtype.float64 as none"
    lacking = results_of(resolve("some"), "copy.*_pinned.4KiB")[1] | results_of(resolve("some"), "overlap.*")[1]
    assert len(lacking) == 3
    for result in lacking.values():
        assert result.device is None
        assert result.unsupported


@pytest.mark.parametrize(
    "body",
    ['raise RuntimeError("the driver is gone")', "os._exit(7)", "os.kill(os.getpid(), 11)", "time.sleep(600)"],
    ids=["raises", "exits", "crashes", "hangs"],
)
def test_a_plugin_that_fails_is_named(plugin_site, body, error_text):
    with pytest.raises(BrokenPluginError) as caught:
        results_of(plugin(plugin_site, body), "launch.add", seconds=5.0 if "sleep" in body else 300.0)
    assert caught.value.plugin == "vendor-some==1.0"
    assert str(caught.value) == error_text


def test_a_pattern_that_selects_nothing(error_text):
    with pytest.raises(UsageError) as caught:
        results_of(resolve("fake_xpu"), "matmull.*")
    assert "matmull.*" in caught.value.what
    assert str(caught.value) == error_text


def test_a_page_and_a_file(tmp_path, plugin_site):
    plugin(plugin_site)
    path = tmp_path / "bench.json"
    result = command_runner().invoke(main, ["bench", "some", "--quick", "--select", "matmul.*.64", "--json", str(path)])
    assert result.exit_code == 0, result.output
    title, columns, *rows = result.stdout.splitlines()
    assert title.startswith("some (vendor-some==1.0) on cpu")
    assert columns.split()[:3] == ["MEASUREMENT", "UNIT", "DEVICE"]
    assert [row.split()[0] for row in rows[:3]] == [f"matmul.{dtype}.64" for dtype in ("float32", "bfloat16", "float16")]
    assert rows[3:] == ["not supported: matmul.float64.64: the plugin declares dtype.float64 as none"]
    assert "[4/4] matmul.float64.64" in result.stderr
    report = json.loads(path.read_text("utf-8"))
    assert report["schema"] == "accelkit.bench/1"
    assert len(report["results"]) == 4


def test_a_report_that_cannot_be_written_is_an_error_before_the_run(tmp_path):
    path = tmp_path / "none" / "bench.json"
    result = command_runner().invoke(main, ["bench", "fake_xpu", "--json", str(path)])
    assert result.exit_code == 2
    assert "create the folder first" in result.stderr
    assert "[1/" not in result.stderr


def test_samples_are_summarised():
    assert Samples.of([4.0, 1.0, 2.0, 3.0, 5.0]) == Samples((4.0, 1.0, 2.0, 3.0, 5.0), 3.0, 2.0, 5)
    assert Samples.of([4.0]) == Samples((4.0,), 4.0, 0.0, 1)
