"""accelkit monitor: readings of devices, and plugins that fail while they are read."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request

import pytest
from command_runner import command_runner

from accelkit import BrokenPluginError, DevicesError
from accelkit.cli import main, monitor
from accelkit.monitoring.monitor import Monitor
from accelkit.monitoring.prometheus import Exporter
from accelkit.selection import resolve
from accelkit_conformance.oracle.free_ports import is_this_machine

pytestmark = pytest.mark.usefixtures("forked_interpreters")

PLUGIN = """
import os, time
import torch
from accelkit import Accelerator

class Some(Accelerator):
    device_type = "cpu"
    is_simulated = True
    calls = 0
    is_set_up = False

    def auto_device_count(self):
        return 2

    def setup_device(self, device):
        self.is_set_up = True

    def get_device_stats(self, device):
        Some.calls += 1
        print("noise")
        {body}
"""


def plugin(site, body):
    site.install("vendor-some", PLUGIN.format(body=body), accelerators={"some": "Some"})
    return resolve("some")


def test_readings_are_of_every_device_and_not_of_the_process_that_reads(plugin_site):
    body = 'return {"board.power.watts": Some.calls, "memory.allocated.bytes": 1, "memory.resident.bytes": 2}'
    with Monitor(plugin(plugin_site, body)) as monitor:
        assert len(monitor.devices) == 2
        readings = [monitor.sample() for _ in range(2)]
    assert [list(reading.stats.values()) for reading in readings] == [
        [{"board.power.watts": 1.0}, {"board.power.watts": 2.0}],
        [{"board.power.watts": 3.0}, {"board.power.watts": 4.0}],
    ]
    assert readings[0].time <= readings[1].time


def test_a_device_is_set_up_if_its_statistics_need_it(plugin_site):
    body = 'if not self.is_set_up: raise RuntimeError("no context")\n        return {"x": 1.0}'
    with Monitor(plugin(plugin_site, body), devices="1") as monitor:
        assert monitor.sample().stats == {"cpu:0": {"x": 1.0}}


def test_a_device_without_statistics_has_the_memory_that_torch_reports():
    with Monitor(resolve("fake_xpu")) as monitor:
        stats = monitor.sample().stats["fake_xpu:0"]
    assert stats["device.memory.used.bytes"] == 0.0
    assert stats["device.memory.total.bytes"] > 0


@pytest.mark.parametrize(
    "body",
    [
        'raise RuntimeError("the driver is gone")',
        "return [1]",
        'return {"x": float("nan")}',
        "os._exit(7)",
        "os.kill(os.getpid(), 11)",
        "time.sleep(600)",
        'os.write(4, b"not JSON\\n"); time.sleep(1)',  # the copy of standard output on which answers are written
    ],
    ids=["raises", "returns_a_list", "returns_nan", "exits", "crashes", "hangs", "writes_into_the_answers"],
)
def test_a_plugin_that_fails_is_named(plugin_site, monkeypatch, body, error_text):
    monkeypatch.setenv("ACCELKIT_PROBE_TIMEOUT", "2")
    with Monitor(plugin(plugin_site, body)) as monitor, pytest.raises(BrokenPluginError) as caught:
        monitor.sample()
    assert caught.value.plugin == "vendor-some==1.0"
    assert str(caught.value) == error_text
    assert monitor._process.exit_code is not None


def test_devices_that_do_not_exist(plugin_site):
    with pytest.raises(DevicesError, match="there is no device 2"), Monitor(plugin(plugin_site, "return {}"), devices="0,2"):
        pass


def test_the_table_has_units(plugin_site):
    plugin(
        plugin_site, 'return {"board.power.watts": 251.0, "board.memory.used.bytes": 3 << 29, "utilization.percent": 37.5, "load": 0.25}'
    )
    result = command_runner().invoke(main, ["monitor", "some", "--count", "2", "--interval", "0.1"])
    assert result.exit_code == 0, result.output
    rows = [line.split("  ") for line in result.stdout.splitlines() if not line.startswith("20")]
    table = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert table == {
        "STATISTIC": ["cpu:0", "cpu:1"],
        "board.memory.used": ["1.5 GiB"] * 2,
        "board.power": ["251 W"] * 2,
        "load": ["0.25"] * 2,
        "utilization": ["37.5 %"] * 2,
    }
    assert len(rows) == 10


@pytest.fixture
def occupied_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--interval", "0"],
        ["--address", "0.0.0.0"],
        ["--count", "1", "--prometheus", "{port}"],
        ["--count", "1", "--prometheus", "0", "--address", "192.0.2.1"],
        ["--count", "1", "--prometheus", "0", "--address", "no.invalid"],
    ],
    ids=["interval", "address_alone", "port_in_use", "address_elsewhere", "unknown_address"],
)
def test_options_that_cannot_be_used(arguments, error_text, occupied_port):
    arguments = [argument.format(port=occupied_port) for argument in arguments]
    result = command_runner().invoke(main, ["monitor", "cpu", *arguments])
    assert result.exit_code == 2
    assert re.sub(r"port \d+|\[Errno.*", "...", result.stderr) == error_text


@pytest.mark.skipif(not is_this_machine("::1"), reason="this machine has no IPv6")
def test_the_url_of_an_ipv6_address_has_brackets():
    exporter = Exporter("cpu", "::1", 0)
    assert re.fullmatch(r"http://\[::1\]:\d+/metrics", exporter.url)
    assert urllib.request.urlopen(exporter.url).status == 200


def test_prometheus_reads_what_is_printed():
    from prometheus_client.parser import text_string_to_metric_families

    command = [sys.executable, "-m", "accelkit", "monitor", "fake_xpu", "--interval", "0.2", "--json", "--prometheus", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stderr.readline().split()[-1]
            reading = json.loads(process.stdout.readline())
            text = urllib.request.urlopen(url).read().decode()
        finally:
            process.terminate()
    gauges = {
        (sample.name, sample.labels["device"]): sample.value for family in text_string_to_metric_families(text) for sample in family.samples
    }
    for device in reading["devices"]:
        assert gauges["accelkit_device_memory_total_bytes", device["device"]] == device["stats"]["device.memory.total.bytes"]
    assert {sample.labels["accelerator"] for family in text_string_to_metric_families(text) for sample in family.samples} == {"fake_xpu"}


@pytest.mark.parametrize(("late", "starts"), [(1.5, [0, 1, 2.5, 3.5, 4.5]), (2.5, [0, 1, 3.5, 4.5, 5.5]), (0.5, [0, 1, 2, 3, 4])])
def test_readings_after_a_late_one_are_an_interval_apart(monkeypatch, late, starts):
    now, seen = [0.0], []

    class Clock:
        monotonic = staticmethod(lambda: now[0])

        @staticmethod
        def sleep(seconds):
            now[0] += seconds

    class Slow:
        def sample(self):
            seen.append(now[0])
            now[0] += late if len(seen) == 2 else 0.01

    monkeypatch.setattr(monitor, "time", Clock)
    assert len(list(monitor._read(Slow(), 1.0, 5))) == 5
    assert seen == pytest.approx(starts)
