"""What accelkit does for a whole job, run as rank 0 of a job whose other ranks are simulated. See ``scale.py``."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from simulated_ranks import Count, CountingStore, make_group, over_gloo

from accelkit import job_secret
from accelkit.launching.log_tee import Screen, Streams
from accelkit.launching.rendezvous import OrderedRendezvous
from accelkit.runtime import process_group
from accelkit.runtime.collectives import call_log, desync_report, fingerprint
from accelkit.runtime.collectives.collectives import Collectives
from accelkit.runtime.strategy_options import option_texts
from accelkit.specs.cluster import ClusterEnvironment
from accelkit.specs.process_placement import Place
from accelkit_builtin.strategies.fsdp import FSDPOptions, FSDPStrategy

CPU = torch.device("cpu")
PER_MACHINE = 8
LINES, LINE = 500, b"x" * 99 + b"\n"
_SETS = 2000


def host_of(rank: int) -> str:
    return f"node-{rank // PER_MACHINE:05}.cluster.example"


class SimulatedCluster(ClusterEnvironment):
    """A launcher that gives ranks, and leaves it to the processes to find out which of them share a machine."""

    name, plugin = "simulated", "simulated"

    def __init__(self, size: int) -> None:
        super().__init__({})
        self._size = size

    world_size = property(lambda self: self._size)
    global_rank = property(lambda self: 0)
    main_address = property(lambda self: "simulated")
    main_port = property(lambda self: 1)
    local_rank = property(lambda self: self.exchanged_value("local_rank"))
    local_world_size = property(lambda self: self.exchanged_value("local_world_size"))
    node_rank = property(lambda self: self.exchanged_value("node_rank"))
    num_nodes = property(lambda self: self.exchanged_value("num_nodes"))


def learn_placement(size: int) -> Count:
    """Count at rank 0, which also hosts the store: every other rank sets its place, and gets what rank 0 has set for that rank."""
    places = {str(rank): Place(host_of(rank), f"{host_of(rank)} {'0' * 36}") for rank in range(1, size)}
    store = CountingStore(lambda key: json.dumps(dataclasses.asdict(places[key])).encode())
    process_group._stores["simulated", 1] = store
    cluster = SimulatedCluster(size)
    began = store.clock.seconds()
    process_group.learn_placement(cluster, 60)
    store.count.seconds = store.clock.seconds() - began
    own = store.count
    answers = [len(value) + 8 for key, value in store._values.items() if "/placement/" in key][1:]
    request = next(len(value) + 17 + len(key) for key, value in store._values.items() if key.endswith("/1") and "/placement/" not in key)
    others = size - 1
    return Count(own.received + others * (request + 40), own.sent + sum(answers), own.messages + 3 * others, own.seconds)


def compare_settings(size: int) -> Count:
    group = make_group(size)

    def packet(rank: int, mine: bytes) -> bytes:
        length, text = mine[:8], mine[8:]
        _, settings, options = json.loads(job_secret.checked(text, 0))
        return length + job_secret.signed(json.dumps([host_of(rank), settings, options]).encode(), rank)

    group.packet = packet
    settings = {"accelerator": "cuda", "plugin": "accelkit==0.1.0", "precision": "bf16-mixed", "strategy": "fsdp"}
    with (
        mock.patch.object(process_group.socket, "gethostname", return_value=host_of(0)),
        mock.patch.object(process_group, "Communicator", return_value=over_gloo()),
        group.measured() as count,
    ):
        process_group.agree(settings, option_texts(FSDPStrategy(FSDPOptions())), CPU)
    return count


def verify(size: int, mode: str) -> Count:
    """Count a call that sends its data separately. In the mode ``first``, the calls that are verified come before this call."""
    group = make_group(size)
    communicator = over_gloo(mode)
    for _ in range(4):
        fingerprint.verify(communicator, "reduce (sum)", "float32[1024]", is_optional=True)
    with group.measured() as count:
        fingerprint.verify(communicator, "reduce (sum)", "float32[1024]", is_optional=True)
    return count


def record_calls(size: int) -> Count:
    """Count, on the host of the store, the entries that all ranks write in a second, if each makes calls as fast as it can."""
    store = CountingStore(lambda key: b"")
    group = make_group(size, store)
    call_log.record_call("reduce (sum) of float32[1024]", group, range(size))
    call_log.flush()  # this entry waits if that of the previous job has only just been written
    entries = size / call_log.seconds_between_entries()
    seconds = _seconds_of_a_set(len(next(iter(store._values.values()))))
    return Count(entries * store.count.received, 0, entries, entries * seconds)


def _seconds_of_a_set(length: int) -> float:
    """Return the CPU seconds that the thread of a TCPStore takes to serve one ``set``."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    value = "x" * length
    store.set("before", value)
    before = time.process_time() - time.thread_time()
    for _ in range(_SETS):
        store.set("accelkit/calls/0", value)
    store.get("accelkit/calls/0")
    return (time.process_time() - time.thread_time() - before) / _SETS


def explain_timeout(size: int) -> Count:
    """Count on the host of the store: every rank but one waits in vain. One of them reads all entries, and the others read its summary."""

    def entry(rank: str) -> bytes:
        calls = {group.group_name: 1} if int(rank) < size - 1 else {}
        last = {"last": "reduce (sum) of float32[1024]", "group": next(iter(calls), "")}
        return json.dumps({"at": f"{host_of(int(rank))}, process 12345", **last, "groups": calls}).encode()

    store = CountingStore(entry)
    group = make_group(size, store)
    call = call_log.record_call("reduce (sum) of float32[1024]", group, range(size))
    began = time.process_time()
    desync_report.explain(call, RuntimeError("Timed out waiting for recv"))
    seconds = time.process_time() - began
    reporter, store.count = store.count, Count()
    with group.as_rank(1):
        call_log.record_call("reduce (sum) of float32[1024]", group, range(size))
        desync_report.explain(call, RuntimeError("Timed out waiting for recv"))
    reader, readers = store.count, size - 2
    return Count(
        reporter.received + readers * reader.received,
        reporter.sent + readers * reader.sent,
        reporter.messages + readers * reader.messages,
        seconds,
    )


def vote(size: int) -> Count:
    """Count one call to ``is_preempted`` or ``check_trigger``."""
    group = make_group(size)
    collectives = Collectives(size, lambda: CPU)
    collectives.communicator = over_gloo  # type: ignore[method-assign]
    collectives.any_process(False)
    with group.measured() as count:
        collectives.any_process(False)
    return count


def order_machines(size: int) -> Count:
    """Count on the host of the launchers' store: one launcher reads the entries of all launchers, and writes an answer for each."""
    machines = max(size // PER_MACHINE, 1)

    def entry(key: str) -> bytes:
        """The entry that accelkit has made for this machine, with another host name."""
        own = next(value for name, value in store._values.items() if name.endswith("node/0")).decode()
        return own.replace(json.dumps(socket.gethostname()), json.dumps(host_of(int(key) * PER_MACHINE)), 1).encode()

    store = CountingStore(entry)
    rendezvous = OrderedRendezvous(None, None, "node-00000")
    began = store.clock.seconds()
    rendezvous._place(store, 0, machines)
    seconds = store.clock.seconds() - began
    request = next(17 + len(key) + len(value) for key, value in store._values.items() if "/node/" in key)
    answers = {key: value for key, value in store._values.items() if "/answer/" in key and not key.endswith("/0")}
    own = store.count
    received = own.received + sum(request + 9 + len(key) for key in answers)
    return Count(received, own.sent + sum(8 + len(value) for value in answers.values()), own.messages + 3 * len(answers), seconds)


def pass_on_output(processes: int) -> Count:
    """Count at a launcher, which writes 500 lines of each process of its machine to a log and to the screen, and sends nothing."""
    streams = Streams()
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "wb") as target:
        screen = Screen(target)
        for rank in range(processes):
            read, write = os.pipe()
            os.write(write, LINE * LINES)
            os.close(write)
            streams.add(read, Path(folder) / f"{rank}.log", screen, rank)
        began = time.process_time()
        streams.start()
        streams.close()
        return Count(processes * LINES * len(LINE), 0, processes, time.process_time() - began)


Operation = Callable[[int], Count]
OPERATIONS: dict[str, Operation] = {
    "learn which ranks share a machine": learn_placement,
    "compare the settings": compare_settings,
    "order the machines (accelkit launch)": order_machines,
    "verified call": lambda size: verify(size, "always"),
    "call that is not verified": lambda size: verify(size, "first"),
    "call log, on the host of the store": record_calls,
    "vote on preemption": vote,
    "error after a timeout, on the host of the store": explain_timeout,
}
