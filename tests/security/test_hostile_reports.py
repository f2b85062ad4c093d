"""Reports and bundles that somebody sent: whatever is in them, a command ends with an error of one line or with what is right."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tarfile

import pytest

import accelkit
from accelkit_conformance.commands.verify import _verdict
from accelkit_conformance.pytest_api import report_to_pytest
from accelkit_conformance.reports import bundle
from accelkit_conformance.reports.markdown import plain
from accelkit_conformance.results import Result

pytestmark = pytest.mark.usefixtures("forked_interpreters")

GIGABYTE = 2**30
RESULT = {"id": "contract/one", "kind": "pass", "seconds": 0.5}
DIGEST = "0" * 64


def report(**changed):
    """The smallest report that follows the schema."""
    availability = {"status": "usable", "reason": "", "hint": ""}
    return {
        "schema": "accelkit.conformance/1",
        "subject": {"name": "acme", "kind": "accelerator", "plugin": "acme==1", "value": "acme:Acme", "availability": availability},
        "suite": {"profile": "contract", "torch": "2.13", "digest": DIGEST, "tests": 1},
        "run": {
            "started": "2026-01-02", "seconds": 1, "parallel": 1, "workers": 1, "peak_bytes": 1, "selected": [], "chosen": 1,
            "is_complete": True,
        },
        "versions": {},
        "summary": {"kinds": {"pass": 1}, "areas": {"contract": {"pass": 1}}},
        "certification": {"is_certified": False, "objections": []},
        "expected_failures": [],
        "results": [RESULT],
        **changed,
    }  # fmt: skip


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "accelkit", "conformance", *map(str, arguments)],
        capture_output=True, text=True, encoding="utf-8", check=False, timeout=200, **options,
    )  # fmt: skip


def in_little_memory():
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTE, GIGABYTE))


def is_an_error_of_ours(result):
    return (
        result.returncode == 2
        and any(line.startswith("accelkit: ") for line in result.stderr.splitlines())
        and "Traceback" not in result.stderr
    )


def test_there_is_a_limit_to_expected_failures(readers, tmp_path):
    """Each is compared with each result that it may excuse: 40,000 of both took longer than anybody waits."""
    declared = {"test": "*x", "reason": "r", "issue": "i", "expires": "2999-01-01"}
    excused = [{**RESULT, "id": f"operators/{'a' * 100}[{index}]", "kind": "expected-failure"} for index in range(40_000)]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report(expected_failures=[declared] * 40_000, results=excused)))
    for result in readers(path):
        assert is_an_error_of_ours(result), result.stderr
        assert "40,000 items" in result.stderr


@pytest.fixture
def readers(tmp_path):
    """Every command that reads a report, given one."""

    def read_all(path):
        yield command("compare", path, path)
        yield command("table", path)
        folder = tmp_path / "folder"
        folder.mkdir(exist_ok=True)
        (folder / "a.json").write_bytes(path.read_bytes())
        yield command("matrix", folder, "--json")

    return read_all


def test_the_smallest_report_is_read(tmp_path, readers):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(report()))
    assert [result.returncode for result in readers(path)] == [0, 0, 0]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"schema": "accelkit.conformance/1", "results": ' + "[" * 200_000,
        json.dumps(report(run=report()["run"] | {"seconds": 0.25})).replace("0.25", "1" + "0" * 400),
        json.dumps(report(results=[RESULT | {"seconds": 0.25}])).replace("0.25", "1" + "0" * 400),
        json.dumps(report(results=[RESULT | {"seconds": 0.25}])).replace("0.25", "1e999"),
        json.dumps(report(results=[RESULT | {"seconds": 0.25}])).replace("0.25", "NaN"),
        json.dumps(report(results=[RESULT | {"attempts": 7777}])).replace("7777", "9" * 5000),
        json.dumps(report(results=[RESULT | {"attempts": 10**30}])),
        json.dumps(report(results=[5])),
        "null",
    ],
    ids=["deep", "deep inside", "seconds of a run", "seconds", "infinite", "no number", "5,000 digits", "large", "no result", "null"],
)
def test_hostile_json_is_an_error(tmp_path, readers, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    for result in readers(path):
        assert is_an_error_of_ours(result), result.stderr
        assert len(result.stderr) < 2000


def test_what_the_schema_does_not_know_is_left_out(tmp_path, readers):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(report(results=[RESULT | {"seen": 5, "colour": {}}])))
    assert [result.returncode for result in readers(path)] == [0, 0, 0]


@pytest.mark.parametrize("value", ["x", "1,x", "9" * 5000, "-1,-1", "1,"])
@pytest.mark.parametrize("keyword", ["GNU.sparse.map", "GNU.sparse.size", "GNU.sparse.realsize", "size", "mtime"])
def test_hostile_headers_of_a_tar_are_problems(tmp_path, keyword, value):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("report.json")
        member.pax_headers = {keyword: value}
        tar.addfile(member)
    assert bundle.verify(path)
    with pytest.raises(accelkit.UsageError):
        bundle.load(path)


def test_headers_of_headers_of_headers_are_a_problem(tmp_path):
    path = tmp_path / "a.tar"
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 512
    path.write_bytes((header.tobuf(tarfile.GNU_FORMAT) + b"x" * 512) * 20_000)
    verified = command("verify", path)
    assert verified.returncode == 1
    assert "the tar cannot be read" in verified.stdout


def test_too_many_members_are_a_problem(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT) * 50_000)
    said = command("verify", path).stdout
    assert "the remaining members were not read" in said
    assert len(said) < 5000


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's memory is Linux's")
@pytest.mark.parametrize("begin", [b"", b"{", tarfile.TarInfo("report.json").tobuf(tarfile.USTAR_FORMAT)], ids=["zeros", "JSON", "tar"])
def test_a_sparse_file_of_20_gigabytes_is_an_error(tmp_path, begin):
    path = tmp_path / "a.json"
    path.write_bytes(begin)
    os.truncate(path, 20 * GIGABYTE)
    for arguments in (("verify", path), ("compare", path, path), ("table", path)):
        result = command(*arguments, preexec_fn=in_little_memory)
        assert is_an_error_of_ours(result), result.stderr
        assert "larger than 50,000,000 bytes" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes with names")
def test_a_pipe_among_reports_is_passed_over(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(report()))
    os.mkfifo(tmp_path / "b.json")
    result = command("matrix", tmp_path, "--json")
    assert result.returncode == 0
    assert "b.json (not a regular file)" in result.stderr


@pytest.mark.parametrize(
    "text", ["[x](javascript:alert(1))", "![x](https://a.example)", "\\[x](https://a.example)", "[x]: https://a.example"]
)
def test_no_link_of_a_devices_name_is_one_in_markdown(text):
    assert "[x]" not in plain(text).replace("\\[", "").replace("\\]", "")
    assert plain(text).count("\\\\") == text.count("\\")


RAISED = {"fail": pytest.fail.Exception, "unsupported": pytest.skip.Exception, "expected-failure": pytest.xfail.Exception}


@pytest.mark.parametrize(("kind", "raised"), RAISED.items())
def test_no_escape_of_a_plugin_reaches_the_terminal_through_pytest(kind, raised):
    with pytest.raises(raised) as error:
        report_to_pytest(Result("contract/one", kind, reason="\x1b[2Jno", detail="\x1b]0;owned\x07", reproducer="\x9b31m"))
    assert "no" in str(error.value)
    assert str(error.value).replace("\n", "").isprintable()


FORGED = "acme\nvalid; certified: acme (acme==1) on Acme X1\n"


def test_no_name_passes_for_another_line(tmp_path):
    named = report(results=[RESULT | {"id": f"contract/{FORGED}"}], subject=report()["subject"] | {"name": FORGED})
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    path.write_text(json.dumps(named))
    other.write_text(json.dumps(report()))
    assert not [line for line in command("compare", other, path).stdout.splitlines() if line.startswith("valid")]
    assert not [line for line in _verdict(named) if "\n" in line]
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for index in range(3000):
            tar.addfile(tarfile.TarInfo(f"{FORGED}{index}" + "x" * 2000))
    for arguments in (("verify", tmp_path / "a.tar"), ("compare", tmp_path / "a.tar", other)):
        result = command(*arguments)
        assert len(result.stdout + result.stderr) < 10_000
        assert not [line for line in (result.stdout + result.stderr).splitlines() if line.startswith("valid")]


def test_a_name_in_an_error_is_short_and_on_its_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(report(versions={"x\naccelkit: all good\n" + "y" * 1_000_000: 5})))
    result = command("table", path)
    assert is_an_error_of_ours(result)
    assert len(result.stderr) < 1000
    assert "\naccelkit: all good" not in result.stderr


@pytest.mark.parametrize("change", [{"issue": "https://x/\ud800"}, {"explains": None}])
def test_a_page_is_whole_whatever_a_summary_holds(tmp_path, change):
    expected = {"test": "contract/one", "reason": "r", "issue": "https://x", "expires": "2027-01-01", "explains": 1} | change
    summary = report(schema="accelkit.conformance.summary/1", expected_failures=[{k: v for k, v in expected.items() if v is not None}])
    del summary["results"]
    (tmp_path / "a.json").write_text(json.dumps(summary))
    page = tmp_path / "page.md"
    page.write_text("precious\n<!-- accelkit conformance matrix -->\nold\n<!-- end of the matrix -->\nmore\n")
    result = command("matrix", tmp_path, "--write", page)
    assert "Traceback" not in result.stderr
    assert result.returncode == (0 if "explains" not in change else 2)
    text = page.read_text("utf-8")
    assert text.startswith("precious\n")
    assert text.endswith("more\n")


def test_a_record_of_specifications_that_is_nested_too_deep(tmp_path):
    path = tmp_path / "old.json"
    path.write_text("[" * 200_000)
    result = subprocess.run([sys.executable, "-m", "accelkit", "info", "--spec-diff", path], capture_output=True, text=True, check=False)
    assert is_an_error_of_ours(result), result.stderr
