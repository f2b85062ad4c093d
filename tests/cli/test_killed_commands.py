"""A command that is killed leaves no process behind, whatever the plugins in its children do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

# It starts a process of its own, as a vendor's daemon may be, and then never comes back: neither to Python's other threads nor to signals.
SPINS = """
import ctypes, os, pathlib, signal, subprocess, sys

def spin():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)
    pathlib.Path(os.environ["NOTES"], str(os.getpid())).write_text(str(daemon.pid))
    wait = ctypes.PyDLL(None).pause
    while True:
        wait()
"""
PLUGIN = (
    SPINS
    + """
from accelkit import Accelerator, Availability, ClusterEnvironment

class Some(Accelerator):
    "Some device."
    device_type = "cpu"

    @classmethod
    def probe(cls):
        if {in_probe}:
            spin()
        return Availability.usable()

    def load(self):
        spin()

class SomeCluster(ClusterEnvironment):
    @property
    def world_size(self):
        spin()
"""
)
NOTES_SECONDS = 60  # until a child has been started, on a busy machine
GONE_SECONDS = 30  # it takes a tenth of a second on an idle one


@pytest.fixture
def notes(tmp_path, monkeypatch):
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv("NOTES", str(folder))
    return folder


def killed(command, notes, count=1, number=signal.SIGKILL, exit_code=-signal.SIGKILL):
    """Send a command SIGKILL, or the signal that is given, once ``count`` of its children have noted that they spin.

    Returns:
        Those children, and what they have started.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    try:
        found = within(NOTES_SECONDS, lambda: len(written := [note for note in notes.iterdir() if note.read_text()]) >= count and written)
        children = [psutil.Process(int(pid)) for note in found for pid in (note.name, note.read_text())]
        children += psutil.Process(process.pid).children(recursive=True)
    finally:
        process.send_signal(number)
        try:
            assert process.wait(timeout=GONE_SECONDS) == exit_code
        finally:
            process.kill()
    return children


def within(seconds, ask):
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"nothing within {seconds} s"
        time.sleep(0.02)
    return answer


def alive(processes):
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def are_gone(processes):
    try:
        within(GONE_SECONDS, lambda: not alive(processes))
    finally:
        for one in alive(processes):
            one.kill()


def accelkit_command(*words):
    return [sys.executable, "-m", "accelkit", *words]


@pytest.mark.parametrize(
    ("words", "in_probe"),
    [
        (["doctor", "some"], True),
        (["doctor", "some"], False),
        (["doctor"], True),
        (["info", "some"], True),
        (["why", "some"], False),
        (["probe", "some"], True),
        (["conformance", "run", "some", "--profile", "contract"], True),
        (["why", "some", "--cluster"], True),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else ("probe" if value else "load"),
)
def test_children_that_spin_end_with_the_command(words, in_probe, plugin_site, notes):
    offered = "[accelkit.clusters]\nsome = vendor_some:SomeCluster" if "--cluster" in words else ""
    plugin_site.install("vendor-some", PLUGIN.format(in_probe=in_probe), accelerators={"some": "Some"}, entry_points=offered)
    are_gone(killed(accelkit_command(*words), notes))


@pytest.mark.parametrize("words", [["doctor", "some"], ["probe", "some"], ["why", "some"]], ids=" ".join)
def test_ctrl_c_ends_a_command_at_once_with_its_children(words, plugin_site, notes):
    plugin_site.install("vendor-some", PLUGIN.format(in_probe=True), accelerators={"some": "Some"})
    are_gone(killed(accelkit_command(*words), notes, number=signal.SIGINT, exit_code=130))


def test_the_child_of_list_ends_with_it(plugin_site, notes):
    """It asks accelkit's own plugins, which answer. What a site customises may not."""
    (plugin_site.folder / "sitecustomize.py").write_text(SPINS + "if 'accelkit.discovery.probe_worker' in sys.orig_argv:\n    spin()\n")
    are_gone(killed(accelkit_command("list"), notes))


def test_the_workers_of_a_conformance_run_end_with_it(plugin_site, notes):
    source = SPINS + (
        "import torch\n"
        "from accelkit import Accelerator, Availability, Capabilities\n"
        "class Some(Accelerator):\n"
        "    'Some device.'\n"
        "    device_type = 'cpu'\n"
        "    @classmethod\n"
        "    def probe(cls):\n"
        "        return Availability.usable()\n"
        "    def device(self, index):\n"
        "        if 'accelkit_conformance.worker' in __import__('sys').modules['__main__'].__spec__.name:\n"
        "            spin()\n"
        "        return torch.device('cpu')\n"
    )
    plugin_site.install("vendor-some", source, accelerators={"some": "Some"})
    words = ["conformance", "run", "some", "--profile", "smoke", "-n", "2", "--timeout", "600"]
    are_gone(killed(accelkit_command(*words), notes, count=2))


def test_what_a_launched_program_started_ends_with_the_launcher(tmp_path, notes):
    program = tmp_path / "program.py"
    program.write_text(SPINS + "spin()\n")
    are_gone(killed(accelkit_command("launch", "--devices", "2", "--accelerator", "cpu", str(program)), notes, count=2))


def test_a_program_that_launches_from_python(tmp_path, notes):
    program = tmp_path / "program.py"
    program.write_text(
        SPINS + "import accelkit\n\ndef work(rt):\n    spin()\n\n"
        "if __name__ == '__main__':\n    accelkit.Runtime(accelerator='cpu', devices=2).launch(work)\n"
    )
    are_gone(killed([sys.executable, str(program)], notes, count=2))
