"""Expected failures: known defects that a vendor declares in a file, each with a reason and an expiry date.

The file is TOML. The vendor's wheel declares the file with an entry point in the group ``accelkit.conformance``. The name of the entry
point is the name of the accelerator, and the value of the entry point is ``package:file``, as in ``acme =
"vendor_acme:expected_failures.toml"``. A file can also be given with ``--expected-failures``. An example of a file::

    [[expected_failure]]
    test = "operators/*[to_sparse,*]"      # a glob over test ids, or a list of globs
    dtypes = ["float32", "bfloat16"]       # optional
    sample = "ndim == 0"                   # optional: Python expression that selects inputs. In tests of operators,
                                           # it may use the variables shape, ndim, args, kwargs, input and dtype
    error = "NotImplementedError"          # optional: "timeout", the class of the error, or the signal that kills
                                           # the process, such as SIGSEGV
    torch = ">=2.9"                        # optional: versions of torch
    reason = "sparse tensors are not supported"
    issue = "https://..."
    expires = 2027-06-30

The expectations in a vendor's file are strict: an expectation that matches no test is an error, and a test that is declared to fail counts
as a failure if it passes. An expired failure still counts as expected, so that a released wheel can be tested later, but the run cannot be
certified and its report says so.

The suite contains one more file of expected failures, ``torch_defects.toml``. It lists failures that torch causes on accelerators. The
expectations in this file are not strict, because the failures need not occur on every device. The failures do not prevent certification.
"""

from __future__ import annotations

import dataclasses
import datetime
import fnmatch
import functools
import importlib.util
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import importlib_metadata
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from accelkit import UsageError

GROUP = "accelkit.conformance"
TIMEOUT = "timeout"
"""The value of ``error`` for a test that exceeds its time limit."""
ORIGIN_OF_TORCH_DEFECTS = "accelkit_conformance/torch_defects.toml"
"""The ``origin`` of expected failures that are defects of torch. The origin of all other expected failures is a file name, which has no
slash."""
_REQUIRED = ("test", "reason", "issue", "expires")


@dataclasses.dataclass(frozen=True, slots=True)
class Expectation:
    """One expected failure: an entry of a file. The example in the module's docstring explains the fields.

    ``origin`` is the name of the file, or ORIGIN_OF_TORCH_DEFECTS. If an entry lists several globs, there is one Expectation for each.
    """

    test: str
    reason: str
    issue: str
    expires: str
    dtypes: tuple[str, ...] = ()
    sample: str = ""
    error: str = ""
    torch: str = ""
    origin: str = ""

    def matches(self, test: str) -> bool:
        """Return whether this expectation applies to a test.

        ``self.test`` is a glob in which brackets stand for themselves, because the ids of tests contain brackets.
        """
        if not _pattern(self.test).match(test):
            return False
        parameters = test.removesuffix("]").partition("[")[2].split(",")
        return not self.dtypes or any(parameter in self.dtypes for parameter in parameters)

    def holds_for(self, facts: Mapping[str, Any]) -> bool:
        """Return whether this expectation applies to the input that ``facts`` describes.

        The expression ``sample`` is evaluated with the variables in ``facts``. Without an expression, the result is True. Call this method
        only in worker processes, because the expression is code from the plugin.

        Raises:
            UsageError: If the expression raises an error, for example because it uses a variable that is not in ``facts``.
        """
        try:
            return not self.sample or bool(eval(self.sample, {}, dict(facts)))  # noqa: S307 # the plugin's own code, which runs here anyway
        except Exception as error:
            variables = ", ".join(sorted(facts)) or "none"
            raise UsageError(
                f"the condition sample = {self.sample!r} of an expected failure cannot be evaluated for an input of a test",
                why=f"{type(error).__name__}: {error} (in {self.origin}, for the tests {self.test})",
                hint=f"use only the variables of this input: {variables}. Inputs of other tests have other variables; "
                "if the glob matches several kinds of tests, write an entry for each",
            ) from error

    @property
    def is_torch_defect(self) -> bool:
        """Whether torch, and not the device, causes the failure."""
        return self.origin == ORIGIN_OF_TORCH_DEFECTS

    @property
    def explanation(self) -> str:
        """The reason for the expected failure, with the issue. It becomes the ``Result.reason`` of a test that fails as expected."""
        return f"{self.reason} ({self.issue})"

    @property
    def is_crash(self) -> bool:
        """Whether the process is expected to stop responding: a signal kills it, or it hangs."""
        return self.error.startswith("SIG") or self.error == TIMEOUT

    def explains(self, error: BaseException) -> bool:
        return not self.error or self.error in {cls.__name__ for cls in type(error).__mro__}

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(**{**fields, "dtypes": tuple(fields.get("dtypes", ()))})


@functools.lru_cache(maxsize=10_000)
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob.replace("[", "[[]")))


def read(path: Path, torch_version: str) -> list[Expectation]:
    """Read a file of expected failures, and return the failures that are expected with ``torch_version``.

    Raises:
        UsageError: If the file cannot be read, or an entry is invalid.
    """
    try:
        entries = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the expected failures in {path} cannot be read", why=str(error), hint="docs/conformance.md shows an example"
        ) from error
    if unknown := set(entries) - {"expected_failure"}:
        raise UsageError(f"{path} has unknown keys: {', '.join(sorted(unknown))}", why="only [[expected_failure]] tables are allowed")
    found = [one for number, entry in enumerate(entries.get("expected_failure", ()), 1) for one in _parse(path, number, entry)]
    return [one for one in found if SpecifierSet(one.torch).contains(torch_version.partition("+")[0], prereleases=True)]


def torch_defects(torch_version: str) -> list[Expectation]:
    """Return the expected failures that this version of torch causes on accelerators.

    The list is empty if ``torch_version`` is not a valid version.
    """
    try:
        Version(torch_version)
    except InvalidVersion:
        return []
    path = Path(__file__).with_name("torch_defects.toml")
    return [dataclasses.replace(one, origin=ORIGIN_OF_TORCH_DEFECTS) for one in read(path, torch_version)]


def _parse(path: Path, number: int, entry: Mapping[str, Any]) -> list[Expectation]:
    """Return one expectation for each test or glob that the entry names."""
    where = f"expected failure {number} of {path}"
    known = {field.name for field in dataclasses.fields(Expectation)} - {"origin"}
    if missing := [name for name in _REQUIRED if not entry.get(name)]:
        raise UsageError(f"{where} does not have {', '.join(missing)}", hint=f"each expected failure needs {', '.join(_REQUIRED)}")
    if unknown := set(entry) - known:
        raise UsageError(f"{where} has unknown keys: {', '.join(sorted(unknown))}", why=f"the known keys are {', '.join(sorted(known))}")
    expires = entry["expires"]
    if not isinstance(expires, datetime.date):
        raise UsageError(
            f"{where} has expires = {expires!r}", why="it must be a date", hint="write a date without quotes: expires = 2027-06-30"
        )
    try:
        compile(entry.get("sample", "True"), "sample", "eval")
        SpecifierSet(entry.get("torch", ""))
    except (SyntaxError, InvalidSpecifier) as error:
        raise UsageError(f"{where} cannot be read", why=str(error)) from error
    tests = [entry["test"]] if isinstance(entry["test"], str) else entry["test"]
    return [Expectation.from_dict({**entry, "test": test, "expires": str(expires), "origin": str(path.name)}) for test in tests]


def expired(declared: Iterable[Mapping[str, Any]], started: str) -> list[str]:
    """Return the expected failures whose expiry date was before the start of the run, each as ``test (date)``.

    Defects of torch are left out, because the vendor is not responsible for them.

    Args:
        declared: The expected failures, as they appear in the report.
        started: The date, or the date and time, at which the run started, in ISO 8601.
    """
    strict = [one for one in declared if one.get("origin") != ORIGIN_OF_TORCH_DEFECTS]
    return [f"{one['test']} ({one['expires']})" for one in strict if one["expires"] < started[:10]]


def file_of(distribution: str, name: str) -> Path | None:
    """Find the file of expected failures that a distribution declares for its accelerator ``name``, without importing the distribution.

    Returns:
        The path; None if the distribution declares no file.

    Raises:
        UsageError: If the file is declared to be in a package that does not exist.
    """
    try:
        entry_points = importlib_metadata.distribution(distribution).entry_points
    except importlib_metadata.PackageNotFoundError:
        return None
    for entry in entry_points:
        if entry.group == GROUP and entry.name == name:
            module, _, name_of_file = entry.value.partition(":")
            package = importlib.util.find_spec(module)
            if package is None or not package.submodule_search_locations:
                raise UsageError(f"{distribution} declares expected failures in {entry.value}", why=f"there is no package {module}")
            return Path(package.submodule_search_locations[0], str(name_of_file))
    return None


def check_all_match(expectations: Iterable[Expectation], tests: Sequence[str]) -> None:
    """Check that every expectation matches at least one test.

    Raises:
        UsageError: If an expectation matches no test. The message names all such expectations.
    """
    idle = [one for one in expectations if not any(one.matches(test) for test in tests)]
    if idle:
        names = ", ".join(one.test for one in idle)
        raise UsageError(
            f"expected failures match no test: {names}", why=f"in {idle[0].origin}", hint="remove them, or correct the test ids"
        )
