"""Write and verify bundles. A bundle is a deterministic tar archive of a report and everything needed to verify the report offline."""

from __future__ import annotations

import collections
import hashlib
import io
import itertools
import json
import os
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelkit import AccelkitError, UsageError, job_secret, untrusted_json
from accelkit.errors import one_line, shortened
from accelkit_conformance import certification, profiles
from accelkit_conformance.expectations import Expectation, expired, torch_defects
from accelkit_conformance.report import Report, content_of, parsed, results_of, summarise
from accelkit_conformance.reports import schema

REPORT, ENVIRONMENT, SUITE, EXPECTED, SUMS = "report.json", "environment.json", "suite.txt", "expected_failures.json", "SHA256SUMS"
_FIXED = (REPORT, ENVIRONMENT, SUITE, EXPECTED, SUMS)
_LOG = re.compile(r"logs/worker-[\w.-]+\.log")
_LOG_BYTES = 200_000
_MOST_MEMBERS = 10_000
_MOST_PROBLEMS, _LONGEST_PROBLEM = 20, 200
_MAGIC, _MAGIC_AT = b"ustar", 257  # POSIX.1-1988, in the header of the first member


def write(report: Report, path: Path, folder: Path) -> None:
    """Write a bundle to ``path``. It contains ``report`` and the last 200,000 bytes of each worker's log in ``folder``.

    It also contains the ``ACCELKIT_`` environment variables, the tests of the suite, the expected failures, and a checksum of each file.
    The same report, logs and ``ACCELKIT_`` environment variables give the same bytes.
    """
    suite = profiles.suite(report["suite"]["profile"], report["suite"]["torch"], report["subject"]["kind"])
    members = {
        REPORT: _json(report),
        ENVIRONMENT: _json({"versions": report["versions"], "environment": job_secret.settings(os.environ)}),
        SUITE: "".join(f"{test}\n" for test in suite.tests).encode(),
        EXPECTED: _json(report["expected_failures"]),
        **{f"logs/{log.name}": _end_of(log) for log in folder.glob("worker-*.log")},
    }
    members[SUMS] = sums(members)
    pack(members, path)


def sums(members: Mapping[str, bytes]) -> bytes:
    """Return the checksums of the members of a bundle in the format of ``sha256sum``."""
    return "".join(f"{hashlib.sha256(members[name]).hexdigest()}  {name}\n" for name in sorted(members)).encode()


def pack(members: Mapping[str, bytes], path: Path) -> None:
    """Write a tar file of these members. The bytes of the file do not depend on the time, the user or the order of the members."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(members):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(members[name]), 0o644
            tar.addfile(member, io.BytesIO(members[name]))


def load(path: Path) -> Report:
    """Load a report from a JSON file or from a bundle, without verifying the bundle.

    Raises:
        UsageError: If the file cannot be read, is larger than ``LARGEST_FILE`` or contains no report, or if the report does not follow the
            schema.
    """
    content = content_of(path)
    if not content.startswith(_MAGIC, _MAGIC_AT):
        return schema.checked(parsed(content, path), path)
    members, problems = _unpacked(content)
    found = _parse(members.get(REPORT, b""))
    if found is None:
        raise UsageError(f"{path} does not contain a report", why="; ".join(problems) or f"{REPORT} is missing or is not JSON")
    return schema.checked(found, path)


def unpack(path: Path) -> tuple[dict[str, bytes], list[str]]:
    """Read the members of a bundle into memory. Checksums are not verified.

    Returns:
        The content of the members by name, and the problems, such as a member that does not belong in a bundle. Such members are left out.
        After 20 problems or 10,000 members, no further members are read.

    Raises:
        UsageError: If the file cannot be read, or is larger than ``LARGEST_FILE``.
    """
    return _unpacked(content_of(path))


def _unpacked(content: bytes) -> tuple[dict[str, bytes], list[str]]:
    members: dict[str, bytes] = {}
    problems: list[str] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in itertools.islice(tar, _MOST_MEMBERS):
                problem = _refusal(member, members)
                if problem:
                    problems.append(shortened(one_line(problem), _LONGEST_PROBLEM))
                    if len(problems) == _MOST_PROBLEMS:
                        break
                elif (stream := tar.extractfile(member)) is not None:
                    members[member.name] = stream.read()
            if tar.next() is not None:
                problems.append("the remaining members were not read")
    except (OSError, tarfile.TarError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        problems.append(f"the tar cannot be read: {error}")
    return members, problems


def verify(path: Path) -> list[str]:
    """Return the problems of a bundle, one line each; an empty list if the bundle is valid. Nothing is written to disk."""
    members, problems = unpack(path)
    problems += [f"{name} is missing" for name in _FIXED if name not in members]
    problems += _check_sums(members)
    report = _parse(members.get(REPORT, b"")) if REPORT in members else None
    if report is None:
        return problems + ([f"{REPORT} is not valid JSON"] if REPORT in members else [])
    if wrong := schema.problems(report):
        return problems + [f"{REPORT} does not follow its schema: {one}" for one in wrong]
    tests = members.get(SUITE, b"").decode("utf-8", "replace").splitlines()
    problems += _check_suite(report, tests) if SUITE in members else []
    problems += _check_results(report, tests)
    if EXPECTED in members and _parse(members[EXPECTED]) != report["expected_failures"]:
        problems.append(f"{EXPECTED} differs from the expected failures in {REPORT}")
    environment = _parse(members.get(ENVIRONMENT, b""))
    if ENVIRONMENT in members and (not isinstance(environment, dict) or environment.get("versions") != report["versions"]):
        problems.append(f"{ENVIRONMENT} does not have the same versions as {REPORT}")
    return problems


def _refusal(member: tarfile.TarInfo, known: Mapping[str, bytes]) -> str:
    if member.name not in _FIXED and not _LOG.fullmatch(member.name):
        return f"{member.name} does not belong in a bundle"
    if member.name in known:
        return f"{member.name} occurs twice"
    if not member.isreg() or member.issparse():
        return f"{member.name} is not a regular file"
    return ""


def _check_sums(members: Mapping[str, bytes]) -> list[str]:
    if SUMS not in members:
        return []
    listed: dict[str, str] = {}
    problems = []
    for line in members[SUMS].decode("utf-8", "replace").splitlines():
        digest, separator, name = line.partition("  ")
        if not separator or name in listed:
            problems.append(f"{SUMS} has a line that cannot be read: {line[:100]}")
        listed[name] = digest
    held = members.keys() - {SUMS}
    problems += [f"{name} is listed in {SUMS} but missing" for name in sorted(listed.keys() - held) if name not in _FIXED]
    problems += [f"{name} is not listed in {SUMS}" for name in sorted(held - listed.keys())]
    wrong = [name for name in sorted(held & listed.keys()) if hashlib.sha256(members[name]).hexdigest() != listed[name]]
    return problems + [f"{name} does not match its checksum in {SUMS}" for name in wrong]


def _check_suite(report: Report, tests: list[str]) -> list[str]:
    said = report["suite"]
    problems = []
    digest = hashlib.sha256("\n".join(sorted(tests)).encode()).hexdigest()
    if digest != said["digest"]:
        problems.append(f"the report has the suite digest {said['digest'][:12]}, but {SUITE} has {digest[:12]}")
    if len(tests) != said["tests"]:
        problems.append(f"according to the report the suite has {said['tests']} tests, but {SUITE} has {len(tests)}")
    try:
        frozen = profiles.suite(said["profile"], said["torch"], report["subject"]["kind"])
    except AccelkitError as error:
        return [*problems, f"the suite cannot be compared with that of this accelkit: {error.what}"]
    if frozen.digest != said["digest"]:
        which = f"profile {said['profile']} for torch {said['torch']}"
        problems.append(f"the report has the suite digest {said['digest'][:12]}, but {which} has {frozen.digest[:12]} in this accelkit")
    return problems


def _check_results(report: Report, tests: list[str]) -> list[str]:
    results, run = results_of(report), report["run"]
    problems, held = [], set(tests)
    times = collections.Counter(result.id for result in results)
    if outside := [test for test in times if test not in held]:
        problems.append(f"results for tests that are not in the suite ({len(outside)}): {certification.some(outside)}")
    if twice := [test for test, number in times.items() if number > 1]:
        problems.append(f"tests with more than one result ({len(twice)}): {certification.some(twice)}")
    declared = [Expectation(one["test"], "", "", "", tuple(one.get("dtypes", ()))) for one in report["expected_failures"]]
    excused = [result.id for result in results if result.kind == "expected-failure"]
    if undeclared := [test for test in excused if not any(one.matches(test) for one in declared)]:
        problems.append(f"expected failures that are not declared ({len(undeclared)}): {certification.some(undeclared)}")
    if summarise(results) != report["summary"]:
        problems.append("the counts in the summary do not match the results")
    if run["is_complete"] != (len(results) == run["chosen"]):
        problems.append(f"run.is_complete is {run['is_complete']}, but there are {len(results)} results for {run['chosen']} tests")
    is_whole = not run["selected"] and report["subject"]["availability"]["status"] == "usable"
    late = expired(report["expected_failures"], run["started"])
    objections = certification.objections(
        tests, results, is_whole=is_whole, expired=late, torch_defects=torch_defects(report["suite"]["torch"])
    )
    said = report["certification"]
    if said["objections"] != objections or said["is_certified"] != (not objections):
        problems.append(f"the certification does not match the results; the correct objections are: {'; '.join(objections) or 'none'}")
    return problems


def _parse(content: bytes) -> Any:
    """Parse JSON; return None if it is invalid."""
    try:
        return untrusted_json.parse(content)
    except ValueError:
        return None


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _end_of(log: Path) -> bytes:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        return file.read(_LOG_BYTES)
