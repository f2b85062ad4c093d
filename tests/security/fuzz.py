"""Changes a file at random, many times, and lets accelkit read it: ``python fuzz.py TARGET COUNT FOLDER``.

An error of accelkit's, or an answer, is right; anything else ends the program with the smallest change that shows it. It prints the peak of
its memory in bytes.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import sys
import time
import zlib
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accelkit

SECONDS = 5  # of the processor, for one reading
_HOSTILE = [
    b"", b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"9" * 400, b"9" * 5000, b"[" * 100_000, b'{"a":' * 5000, b'"', b'"\\ud800"',
    b"\x00", b"\xff\xfe", b"..", b"../../etc/passwd", b"/", b"\n", b"{}", b"[]", b"ustar", b"0" * 512, b"\x80\x00\x00\x00\x7f\xff\xff\xff",
    b"ctorch\nload\n", b"cos\nsystem\n", b"R", b"b.", b"\x93", b"step-0", b"step-00000000000000000001",
]  # fmt: skip
TOKENS = {f"{token[:24]!r}, {len(token)} bytes": token for token in _HOSTILE}
VALUES = [None, True, -1, 0, 1, 2**63, 10**30, 1.5, "", "..", "\ud800", "x" * 10_000, [], {}, [[]], {"": {}}, ["a", "b"], [["a", 1]]]

places = st.integers(0, 2**32)
edits = st.one_of(
    st.tuples(st.just("flip"), places, st.integers(0, 7)),
    st.tuples(st.just("insert"), places, st.sampled_from(sorted(TOKENS))),
    st.tuples(st.just("replace"), places, st.sampled_from(sorted(TOKENS))),
    st.tuples(st.just("delete"), places, st.integers(1, 2000)),
    st.tuples(st.just("repeat"), places, st.integers(1, 2000)),
    st.tuples(st.just("cut"), places, st.just(0)),
    st.tuples(st.just("value"), places, st.sampled_from(VALUES)),
    st.tuples(st.just("key"), places, st.sampled_from(VALUES[9:12])),
    st.tuples(st.just("remove"), places, st.just(0)),
)


def changed(content: bytes, edit: tuple) -> bytes:
    kind, place, what = edit
    if kind in ("value", "key", "remove"):
        return changed_json(content, kind, place, what)
    at = place % (len(content) + 1)
    if kind == "flip" and at < len(content):
        return content[:at] + bytes([content[at] ^ (1 << what)]) + content[at + 1 :]
    if kind == "insert":
        return content[:at] + TOKENS[what] + content[at:]
    if kind == "replace":
        return content[:at] + TOKENS[what] + content[at + len(TOKENS[what]) :]
    if kind == "delete":
        return content[:at] + content[at + what :]
    if kind == "repeat":
        return content[:at] + content[at : at + what] * 3 + content[at + what :]
    return content[:at]


def changed_json(content: bytes, kind: str, place: int, what: object) -> bytes:
    """One place of the first line that is JSON gets another value, another name, or goes; as it is if nothing is JSON."""
    first, newline, rest = content.partition(b"\n") if content.count(b"\n{") else (content, b"", b"")
    try:
        whole = json.loads(first)
    except (ValueError, RecursionError):
        return content
    spots = list(walk(whole))
    if not spots:
        return content
    holder, key = spots[place % len(spots)]
    if kind == "value":
        holder[key] = copy.deepcopy(what)
    elif kind == "remove":
        del holder[key]
    elif isinstance(holder, dict):
        holder[what] = holder.pop(key)
    return json.dumps(whole).encode() + newline + rest


def walk(value: object):
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from walk(inner)


class Checkpoint:
    """A file of a checkpoint; who changes it may also correct the checksums, and then other numbers are no surprise."""

    def __init__(self, folder: Path, name: str) -> None:
        import torch

        from accelkit.runtime.checkpoints import checkpoint

        self.load, self.torch = checkpoint.load, torch
        self.state = {
            "model": {"weight": torch.arange(6.0).reshape(2, 3)},
            "optimizer": {"lr": 0.125, "betas": (0.9, 0.999), "names": ["a"]},
        }
        self.root, self.step = folder / "ckpt", folder / "ckpt" / "step-0"
        checkpoint.save(self.root, self.state)
        self.path = self.root / name
        self.original = self.path.read_bytes()
        self.manifest = (self.step / "manifest.json").read_bytes()
        self.checksum = (self.step / "manifest.crc32").read_bytes()

    def read(self, content: bytes, is_forged: bool) -> None:
        self.path.write_bytes(content)
        is_forged = is_forged and self.path.parent != self.root  # LATEST has its checksum in itself
        if is_forged:
            self.forge(content)
        try:
            loaded = self.load(self.root)
        except accelkit.CheckpointError:
            return
        finally:
            (self.step / "manifest.json").write_bytes(self.manifest)
            (self.step / "manifest.crc32").write_bytes(self.checksum)
        if not is_forged:
            assert loaded["optimizer"] == self.state["optimizer"]
            assert self.torch.equal(loaded["model"]["weight"], self.state["model"]["weight"])

    def forge(self, content: bytes) -> None:
        if self.path.name != "manifest.json":
            manifest = json.loads(self.manifest)
            manifest["files"][f"data/{self.path.name}"] = {"bytes": len(content), "crc32": zlib.crc32(content)}
            content = json.dumps(manifest).encode()
            (self.step / "manifest.json").write_bytes(content)
        (self.step / "manifest.crc32").write_text(f"{len(content)} {zlib.crc32(content):08x}\n")


class Verdict:
    def __init__(self, folder: Path) -> None:
        from accelkit.discovery import verdict_cache

        os.environ["ACCELKIT_CACHE_DIR"] = str(folder)
        self.memory = verdict_cache
        self.record = next(record for record in accelkit.plugins("accelerator") if record.name == "cpu")
        verdict_cache.remember(self.record, verdict_cache.Verdict("usable", "it is here", "no hint", capabilities={"streams": "native"}))
        (self.path,) = (folder / "verdicts").iterdir()
        self.original = self.path.read_bytes()
        assert verdict_cache.recalled([self.record])[self.record].capabilities == {"streams": "native"}

    def read(self, content: bytes, is_forged: bool) -> None:
        self.path.write_bytes(content)
        found = self.memory.recalled([self.record]).get(self.record)
        assert found is None or all(map(str.isprintable, found.capabilities.values())) or found.as_dict()


class Journal:
    def __init__(self, folder: Path) -> None:
        from accelkit_conformance.journal import Journal
        from accelkit_conformance.results import Result

        os.environ["ACCELKIT_CACHE_DIR"] = str(folder)
        self.make = lambda: Journal({"name": "acme"})
        journal = self.make()
        journal.open("2026-01-02T03:04:05", is_new=True)
        journal.say_hello({"device": "acme:0"})
        journal.add(Result("contract/one", "fail", 0.5, "no", notes=("a",)), at=1.0)
        journal.close(is_complete=True)
        self.path = journal.folder / "journal.jsonl"
        self.original = self.path.read_bytes()

    def read(self, content: bytes, is_forged: bool) -> None:
        self.path.write_bytes(content)
        journal = self.make()
        journal.read()
        assert all(result.as_dict()["id"] == name for name, result in journal.results.items())


class Report:
    """A report as JSON, read and made into every other form."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
        from example_reports import EXPECTED, make_report

        from accelkit_conformance.reports import badge, bundle, html, junit, markdown, matrix, summary

        self.bundle, self.folder, self.path = bundle, folder, folder / "a.json"
        self.report = make_report(["fail", "flaky", "unsupported", "expected-failure"], expected=[EXPECTED])
        self.report["results"] = self.report["results"][:6]
        self.original = json.dumps(self.report).encode()
        self.writers = (badge.write, html.write, junit.write)
        self.tables = (markdown.table, lambda report: matrix.markdown([(self.path, summary.of(report))]))

    def read(self, content: bytes, is_forged: bool) -> None:
        self.path.write_bytes(content)
        try:
            report = self.bundle.load(self.path)
        except accelkit.UsageError:
            return
        for write in self.writers:
            write(report, self.folder / "made", self.folder)
        for table in self.tables:
            assert table(report)


class Bundle(Report):
    """A bundle, verified."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bundle.write(self.report, self.path, folder)
        self.original = self.path.read_bytes()

    def read(self, content: bytes, is_forged: bool) -> None:
        self.path.write_bytes(content)
        assert isinstance(self.bundle.verify(self.path), list)
        super().read(content, is_forged)


TARGETS = {
    "manifest": lambda folder: Checkpoint(folder, "step-0/manifest.json"),
    "index": lambda folder: Checkpoint(folder, "step-0/data/.metadata"),
    "latest": lambda folder: Checkpoint(folder, "LATEST"),
    "verdict": Verdict,
    "journal": Journal,
    "report": Report,
    "bundle": Bundle,
}


def main(target: str, count: str, folder: str) -> None:
    subject = TARGETS[target](Path(folder))
    num_read = 0

    @settings(max_examples=int(count), deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(edits, min_size=1, max_size=3), st.booleans())
    def survives(changes: list, is_forged: bool) -> None:
        nonlocal num_read
        content = subject.original
        for edit in changes:
            content = changed(content, edit)
        begun = time.process_time()
        subject.read(content, is_forged)
        num_read += 1
        assert time.process_time() - begun < SECONDS

    survives()
    print(json.dumps({"read": num_read, "peak": peak_of_memory()}))


def peak_of_memory() -> int:
    """In bytes. Linux counts into ``ru_maxrss`` what the process that started this one had."""
    if sys.platform == "linux":
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main(*sys.argv[1:])
