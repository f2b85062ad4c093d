"""What lies in caches is code, or is believed: nobody else may have written it, and a cache that cannot be read is none."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import typing
import warnings
from pathlib import Path

import pytest

import accelkit
from accelkit import private_files
from accelkit.discovery import verdict_cache
from accelkit_conformance.journal import Journal
from accelkit_conformance.results import Result

BUILD = "from accelkit_fake_xpu.build import LIBRARY; print(LIBRARY.build())"
HOSTILE = [
    "", "5", "null", "[]", '"usable"', "{}", '{"status": null}', '{"status": []}', '{"status": "usable", "reason": 3}', "[" * 100_000,
    '{"status": "usable", "checks": {"x": {}}}', '{"status": "usable", "checks": [1]}', '{"status": "usable", "seconds": 1e999}',
    '{"status": "usable", "capabilities": {"streams": 1}}', '{"status": "usable", "cached_at": "now"}', '{"status": "perfect"}',
    '{"status": "usable", "seconds": ' + "9" * 400 + "}", '{"status": "usable", "device_count": 1.5}', "\x00", "\ud800",
]  # fmt: skip

posix = pytest.mark.skipif(os.name != "posix", reason="files have no owner and mode of this kind")
as_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def record(plugin_site):
    """A plugin whose verdict can be remembered."""
    plugin_site.install("acme-plugin", "", accelerators={"acme": "Acme"})
    (found,) = [record for record in accelkit.plugins("accelerator") if record.name == "acme"]
    return found


@pytest.fixture
def verdict(record):
    """The file with the remembered verdict on it."""
    verdict_cache.remember(record, verdict_cache.Verdict("usable", "it is here"))
    (path,) = (verdict_cache.cache_folder() / "verdicts").iterdir()
    assert verdict_cache.recalled([record]).get(record).reason == "it is here"
    return path


@posix
def test_what_is_remembered_is_the_users_alone_whatever_the_umask(record):
    before = os.umask(0)
    try:
        verdict_cache.remember(record, verdict_cache.Verdict("usable"))
    finally:
        os.umask(before)
    folder = verdict_cache.cache_folder() / "verdicts"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]


@posix
@pytest.mark.parametrize("part", ["file", "folder", "folder above"])
def test_a_verdict_that_others_could_have_written_is_none(record, verdict, part):
    changed = {"file": verdict, "folder": verdict.parent, "folder above": verdict.parent.parent}[part]
    changed.chmod(0o777)
    try:
        private_files._check_way.cache_clear()  # another process would ask anew
        assert verdict_cache.recalled([record]).get(record) is None
        if part != "file":
            with pytest.warns(RuntimeWarning, match=f"not cached.*(?s:.)*every user can write to it.*(?s:.)*chmod go-w {changed}"):
                verdict_cache.remember(record, verdict_cache.Verdict("usable"))
    finally:
        changed.chmod(0o700)


@as_root
def test_a_verdict_of_another_user_is_none(record, verdict):
    os.chown(verdict, 65534, 65534)
    assert verdict_cache.recalled([record]).get(record) is None
    os.chown(verdict, 0, 0)
    assert verdict_cache.recalled([record]).get(record) is not None


@posix
def test_a_link_and_a_pipe_are_none(record, verdict, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    verdict.rename(elsewhere)
    verdict.symlink_to(elsewhere)
    assert verdict_cache.recalled([record]).get(record) is None
    verdict.unlink()
    os.mkfifo(verdict, 0o600)
    assert verdict_cache.recalled([record]).get(record) is None


@pytest.mark.parametrize("content", HOSTILE, ids=lambda content: content[:40])
def test_a_verdict_that_cannot_be_read_is_none(record, verdict, content):
    verdict.write_text(content, "utf-8", "surrogatepass")
    assert verdict_cache.recalled([record]).get(record) is None


def test_every_change_of_one_value_is_read_or_none(record, verdict):
    """Each value of the file replaced by each kind of value: nothing fails."""
    whole = json.loads(verdict.read_text())
    for name in whole:
        for value in (None, 5, -1, 1.5, "", "text", [], [1], {}, {"a": 1}, {"a": {"b": 2}}, True):
            verdict.write_text(json.dumps(whole | {name: value}))
            found = verdict_cache.recalled([record]).get(record)
            assert found is None or isinstance(found.reason + found.hint + found.description, str)
            assert found is None or all(check.status in ("usable", "absent", "broken") for check in found.checks.values())


def test_the_list_is_printed_whatever_lies_in_the_cache(tmp_path):
    environ = os.environ | {"ACCELKIT_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "accelkit", "list", "--json"]
    first = json.loads(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)
    for index, path in enumerate(sorted((tmp_path / "cache" / "verdicts").iterdir())):
        path.write_text(HOSTILE[index % 16])
    second = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=100)
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["plugins"] == first["plugins"]


@posix
def test_doctor_names_a_cache_that_others_can_write(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    environ = os.environ | {"ACCELKIT_CACHE_DIR": str(cache)}
    result = subprocess.run(
        [sys.executable, "-m", "accelkit", "doctor", "cpu", "--json"], env=environ, capture_output=True, text=True, check=False, timeout=200
    )
    check = json.loads(result.stdout)["checks"]["cache folder"]
    assert check["status"] == "broken"
    assert "every user can write to it (mode 0777)" in check["reason"]
    assert f"chmod go-w {cache}" in check["hint"]


class TestTheLibraryOfTheFakeXpu:
    """It is code, and runs in the user's own process."""

    @pytest.fixture
    def library(self, tmp_path):
        """A file where the library would be; loading it would fail, and that would say so."""
        code = "from accelkit_fake_xpu.build import LIBRARY; print(LIBRARY.path)"
        self.environ = os.environ | {"FAKE_XPU_CACHE_DIR": str(tmp_path / "cache")}
        path = Path(self.run(code).stdout.strip())
        path.parent.mkdir(mode=0o700)
        path.write_text("not even a library")
        path.chmod(0o600)
        return path

    def run(self, code):
        return subprocess.run([sys.executable, "-c", code], env=self.environ, capture_output=True, text=True, check=False, timeout=100)

    def refused(self):
        result = self.run(BUILD)
        assert result.returncode == 1
        last = result.stderr.splitlines()[-1]
        assert "fake_xpu is not loaded: other users could run code in your programs" in last
        assert "with FAKE_XPU_CACHE_DIR" in last
        return last

    @posix
    def test_it_is_taken_if_it_is_the_users_alone(self, library):
        assert self.run(BUILD).stdout == f"{library}\n"

    @posix
    def test_others_may_write_the_file(self, library):
        library.chmod(0o666)
        assert f"chmod go-w {library}" in self.refused()

    @posix
    def test_others_may_write_the_folder(self, library):
        library.parent.chmod(0o777)
        assert f"chmod go-w {library.parent}" in self.refused()

    @as_root
    @pytest.mark.parametrize("is_file", [True, False])
    def test_it_belongs_to_another_user(self, library, is_file):
        os.chown(library if is_file else library.parent, 65534, 65534)
        assert "its owner is nobody" in self.refused()

    @as_root
    def test_a_link_of_another_user(self, library, tmp_path):
        elsewhere = tmp_path / "elsewhere.so"
        library.rename(elsewhere)
        library.symlink_to(elsewhere)
        os.lchown(library, 65534, 65534)
        assert "its owner is nobody" in self.refused()


@as_root
def test_another_user_cannot_plant_a_library(tmp_path_factory):
    """The whole attack: a folder in /tmp that the victim's cache was told to be in, made by another user first."""
    cache = Path("/tmp") / f"accelkit-test-{os.getpid()}"  # where everybody may create
    plant = f"mkdir -p {cache}/fake && touch {cache}/fake/x.so"
    subprocess.run(["/bin/sh", "-c", plant], user=65534, group=65534, cwd="/", check=True, env={"PATH": os.defpath})
    try:
        with pytest.raises(accelkit.UntrustedFileError, match="its owner is nobody"):
            accelkit.private_folder(cache / "fake")
        with pytest.raises(accelkit.UntrustedFileError, match="its owner is nobody"):
            accelkit.check_private(cache / "fake" / "x.so")
    finally:
        subprocess.run(["rm", "-rf", str(cache)], check=True)


@posix
def test_a_folder_is_made_for_its_user_alone(tmp_path):
    before = os.umask(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = accelkit.private_folder(tmp_path / "one" / "two")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (made, made.parent)] == [0o700] * 2
    assert accelkit.private_folder(made) == made


class TestTheJournalOfTheConformanceSuite:
    """What an earlier run wrote: --resume goes on after it."""

    RESULT: typing.ClassVar = {"id": "device::one", "kind": "pass", "seconds": 0.5, "at": 1.0}
    HOSTILE = (
        "5", "null", "[]", '"id"', "{}", '{"id": 5}', '{"id": "x"}', '{"id": "x", "kind": "perfect"}', '{"started": 5}', '{"hello": 5}',
        '{"started": "yesterday"}', '{"id": "x", "kind": "pass", "seconds": 1e999}', "[" * 100_000,
        '{"id": "x", "kind": "pass", "at": "now"}',
        '{"id": "x", "kind": "pass", "notes": 5}', "\x00\x1b[2J", "{",
    )  # fmt: skip

    @pytest.fixture
    def journal(self):
        journal = Journal({"name": "acme"})
        journal.open("2026-01-02T03:04:05", is_new=True)
        journal.add(Result.from_dict(self.RESULT), at=1.0)
        journal.close(is_complete=False)
        return journal

    def test_lines_that_are_none_of_ours_are_left_out(self, journal):
        path = journal.folder / "journal.jsonl"
        first, second = path.read_text().splitlines()
        path.write_text("\n".join([first, *self.HOSTILE, second, *self.HOSTILE]))
        again = Journal({"name": "acme"})
        assert again.read()
        assert list(again.results) == ["device::one"]
        assert again.results["device::one"].seconds == 0.5
        assert (again.started, again.seconds, again.hello) == ("2026-01-02T03:04:05", 1.0, {})

    @pytest.mark.parametrize("line", HOSTILE, ids=lambda line: line[:40])
    def test_a_journal_without_a_line_of_ours_is_none(self, journal, line):
        (journal.folder / "journal.jsonl").write_text(line)
        assert not Journal({"name": "acme"}).read()

    @posix
    def test_it_is_the_users_alone(self, journal):
        path = journal.folder / "journal.jsonl"
        assert [stat.S_IMODE(one.stat().st_mode) for one in (path, journal.folder)] == [0o600, 0o700]
        path.chmod(0o666)
        with pytest.raises(accelkit.UntrustedFileError, match=f"chmod go-w {path}"):
            Journal({"name": "acme"}).read()

    @posix
    def test_a_link_and_a_pipe_are_refused(self, journal, tmp_path):
        path = journal.folder / "journal.jsonl"
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(accelkit.UsageError, match="cannot be read"):
            Journal({"name": "acme"}).read()
        with pytest.raises(OSError, match="symbolic links"):
            journal.open("2026-01-02T03:04:05", is_new=False)
        path.unlink()
        os.mkfifo(path, 0o600)
        with pytest.raises(accelkit.UsageError, match="cannot be read"):
            Journal({"name": "acme"}).read()
