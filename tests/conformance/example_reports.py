"""Reports made without a run, of the profile contract, with real summaries and objections; and bundles that were tampered with."""

from __future__ import annotations

import json
import re

import accelkit
from accelkit.discovery.metadata import installed_version
from accelkit_conformance import certification, profiles
from accelkit_conformance.report import SCHEMA, summarise
from accelkit_conformance.reports import bundle
from accelkit_conformance.results import Result

HOSTILE = "</script><img src=x onerror=alert(1)>\x00\x1b[31m\ud800&\"']]>"
LOADS = re.compile(r"<[a-z][^>]*\ssrc\s*=|<link|@import|url\(")
EXPECTED = {"test": "operators/*", "reason": "known", "issue": "https://example.org/1", "expires": "2099-01-01", "dtypes": []}
SUITE = profiles.suite("contract", installed_version("torch"))
NUM_CONTRACT = sum(test.startswith("contract/") for test in SUITE.tests)


def make_report(kinds=(), *, results=None, expected=(), **subject):
    """A report of the profile contract: ``kinds`` are what came of its first tests; the others passed."""
    if results is None:
        given = dict(zip(SUITE.tests, kinds, strict=False))
        results = [Result(test, given.get(test, "pass"), 0.01) for test in SUITE.tests]
    objections = certification.objections(SUITE.tests, results, is_whole=True)
    return {
        "schema": SCHEMA,
        "subject": {
            "name": "acme",
            "kind": "accelerator",
            "plugin": "vendor-acme==1.0",
            "value": "vendor_acme:Acme",
            "availability": {"status": "usable", "reason": "2 boards", "hint": ""},
            "device_names": ["Acme One", "Acme One"],
            "capabilities": {"streams": "native", "graphs": "none"},
            **subject,
        },
        "suite": {"profile": "contract", "torch": SUITE.torch, "digest": SUITE.digest, "tests": len(SUITE.tests)},
        "run": {
            "started": "2026-11-21T10:00:00+00:00",
            "seconds": 1.5,
            "parallel": 2,
            "workers": 2,
            "peak_bytes": 2**28,
            "selected": [],
            "chosen": len(SUITE.tests),
            "is_complete": len(results) == len(SUITE.tests),
        },
        "versions": {"accelkit": accelkit.__version__, "torch": installed_version("torch")},
        "summary": summarise(results),
        "certification": {"is_certified": not objections, "objections": objections},
        "expected_failures": list(expected),
        "results": [result.as_dict() for result in results],
    }


def save(path, report):
    path.write_text(json.dumps(report))
    return path


def tamper(path, change, *, with_sums=True):
    """Change the members of a bundle, and by default its checksums too, as a careful forger would."""
    members, problems = bundle.unpack(path)
    assert not problems
    change(members)
    if with_sums and bundle.SUMS in members:
        members[bundle.SUMS] = bundle.sums({name: content for name, content in members.items() if name != bundle.SUMS})
    bundle.pack(members, path)
    return bundle.verify(path)
