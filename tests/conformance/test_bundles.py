"""Bundles: what is in them, what a forger cannot change, and what verify says."""

from __future__ import annotations

import hashlib
import json
import tarfile

import pytest
from example_reports import EXPECTED, SUITE, make_report, tamper

from accelkit_conformance.report import summarise
from accelkit_conformance.reports import bundle
from accelkit_conformance.results import KINDS, Result


def change_report(change):
    def apply(members):
        report = json.loads(members["report.json"])
        change(report)
        members["report.json"] = json.dumps(report).encode()

    return apply


@pytest.mark.parametrize("kinds", [(), KINDS])
def test_bundle_verifies(packed, kinds):
    path = packed(make_report(kinds, expected=[{**EXPECTED, "test": "*"}]))
    assert bundle.verify(path) == []
    members, _ = bundle.unpack(path)
    assert set(members) == {"report.json", "environment.json", "suite.txt", "expected_failures.json", "logs/worker-1.log", "SHA256SUMS"}
    assert len(members["logs/worker-1.log"]) == 200_000
    assert members["logs/worker-1.log"].endswith(b"the end")
    environment = json.loads(members["environment.json"])["environment"]
    assert environment["ACCELKIT_DISABLE"] == "other"
    assert all(name.startswith("ACCELKIT_") for name in environment)
    assert members["suite.txt"].decode().split() == list(SUITE.tests)


def test_bundle_is_deterministic(packed):
    first = packed().read_bytes()
    assert packed().read_bytes() == first
    with tarfile.open(packed()) as tar:
        found = tar.getmembers()
    assert [one.name for one in found] == sorted(one.name for one in found)
    assert {(one.mtime, one.uid, one.gid, one.uname, one.gname) for one in found} == {(0, 0, 0, "", "")}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (change_report(lambda report: report["results"][0].update(kind="pass")), "summary"),
        (change_report(lambda report: report["results"][0].update(kind="pass")), "certification"),
        (change_report(lambda report: report["results"].pop(0)), "run.is_complete"),
        (change_report(lambda report: report["results"].append(report["results"][1])), "more than one result"),
        (change_report(lambda report: report["results"][1].update(id="contract/other")), "not in the suite"),
        (change_report(lambda report: report["results"][0].update(kind="expected-failure")), "not declared"),
        (change_report(lambda report: report["summary"]["kinds"].update(fail=0)), "summary"),
        (
            change_report(lambda report: report["certification"].update(objections=[], is_certified=True)),
            "1 test failed",
        ),
        (change_report(lambda report: report["run"].update(selected=["memory"])), "selected"),
        (change_report(lambda report: report["expected_failures"].append(EXPECTED)), "expected_failures.json"),
        (change_report(lambda report: report["versions"].update(torch="9")), "environment.json"),
        (change_report(lambda report: report["suite"].update(digest="0" * 64)), "000000000000"),
        (change_report(lambda report: report["suite"].update(torch="0.1")), "suite"),
        (change_report(lambda report: report["suite"].update(tests=1)), "has 1 tests"),
        (change_report(lambda report: report.pop("run")), "report.run"),
        (lambda members: members.update({"report.json": b"[" * 100_000}), "report.json"),
        (lambda members: members.update({"report.json": b"null"}), "report.json"),
        (lambda members: members.update({"report.json": b"[]"}), "report is []"),
        (lambda members: members.pop("report.json"), "report.json"),
        (lambda members: members.pop("suite.txt"), "suite.txt"),
        (lambda members: members.pop("SHA256SUMS"), "SHA256SUMS"),
        (lambda members: members.update({"suite.txt": b"contract/other\n"}), "suite.txt"),
        (lambda members: members.update({"../evil": b""}), "../evil"),
        (lambda members: members.update({"logs/../worker-1.log": b""}), "logs/../worker-1.log"),
    ],
)
def test_careful_forgery_is_found(packed, change, problem, error_text):
    found = tamper(packed(make_report(["fail"])), change)
    assert any(problem in one for one in found), found
    assert "\n".join(found) == error_text


def test_the_whole_suite_cannot_be_exchanged(packed):
    """With digest, suite and results of one's own choice, only the frozen list tells."""
    only = SUITE.tests[:3]

    def apply(report):
        results = [Result(test, "pass") for test in only]
        report["suite"].update(digest=hashlib.sha256("\n".join(sorted(only)).encode()).hexdigest(), tests=3)
        report["run"].update(chosen=3)
        report.update(results=[one.as_dict() for one in results], summary=summarise(results))

    def change(members):
        change_report(apply)(members)
        members["suite.txt"] = "".join(f"{test}\n" for test in only).encode()

    (problem,) = tamper(packed(), change)
    assert f"but profile contract for torch {SUITE.torch} has" in problem


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda members: members.update({"logs/worker-1.log": b"nothing"}), "logs/worker-1.log does not match its checksum"),
        (lambda members: members.pop("logs/worker-1.log"), "logs/worker-1.log is listed in SHA256SUMS but missing"),
        (lambda members: members.update({"logs/worker-2.log": b""}), "logs/worker-2.log is not listed in SHA256SUMS"),
        (lambda members: members.update({"SHA256SUMS": members["SHA256SUMS"] + b"what\n"}), "SHA256SUMS has a line that cannot be read"),
    ],
)
def test_checksums_are_checked(packed, change, problem):
    assert [one for one in tamper(packed(), change, with_sums=False) if problem in one]


def test_members_that_are_no_plain_files_are_refused(packed):
    path = packed()
    with tarfile.open(path, "a") as tar:
        for name, kind in [("logs/worker-7.log", tarfile.SYMTYPE), ("report.json", tarfile.REGTYPE)]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            tar.addfile(member)
    assert bundle.verify(path) == ["logs/worker-7.log is not a regular file", "report.json occurs twice"]


@pytest.mark.parametrize("length", [0, 100, 2000])
def test_cut_bundles_are_found(packed, length):
    path = packed()
    path.write_bytes(path.read_bytes()[:length])
    assert bundle.verify(path)


# accelkit conformance verify


def test_verify(cli, packed, error_text):
    path = packed()
    result = cli("verify", path)
    assert (result.exit_code, result.output.count("\n")) == (0, 1)
    assert all(part in result.output for part in ("acme (vendor-acme==1.0)", "Acme One", "contract"))
    assert "not certified" not in result.output
    assert result.output == error_text
    assert json.loads(cli("verify", path, "--json").output)["certification"]["is_certified"] is True
    result = cli("verify", packed(make_report(["fail"])))
    assert result.exit_code == 0
    assert "not certified" in result.output
    assert f"torch {SUITE.torch}" in result.output
    assert SUITE.tests[0] in result.output
    assert result.output == error_text


def test_verify_says_every_problem(cli, packed):
    path = packed()
    problems = tamper(path, lambda members: members.pop("suite.txt"))
    result = cli("verify", path)
    assert (result.exit_code, result.output.splitlines()) == (1, problems)
    found = json.loads(cli("verify", path, "--json").output)
    assert (found["schema"], found["is_sound"], found["problems"]) == ("accelkit.conformance.verify/1", False, problems)
