"""What accelkit requires of every plugin, even without its hardware: the class, its probe, its declarations and its metadata."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import TYPE_CHECKING

from accelkit import Accelerator, Availability, Capabilities, DevicesError
from accelkit.discovery import loading
from accelkit.types import FROM_CODE
from accelkit_conformance.checks import check
from accelkit_conformance.subject import raises
from accelkit_conformance.subprocess_checks import in_child

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("contract", needs_hardware=False)
def class_is_documented(subject: Subject) -> None:
    """The class has a docstring of its own."""
    assert "__doc__" in vars(subject.cls), f"{subject.cls.__name__} has no docstring"
    assert (subject.cls.__doc__ or "").strip(), "the docstring is empty"


@check("contract", needs_hardware=False)
def device_type_is_an_identifier(subject: Subject) -> None:
    """``device_type`` is an identifier in lower case, as in ``torch.device``."""
    found = subject.cls.device_type  # type: ignore[attr-defined]
    assert isinstance(found, str), f"device_type is {found!r}"
    assert found.isidentifier(), f"device_type is {found!r}; letters, digits and _ are expected"
    assert found == found.lower(), f"device_type is {found!r}; torch's device types are in lower case"


@check("contract", needs_hardware=False)
def probe_answers(subject: Subject) -> None:
    """``probe()`` can be called on the class and returns an Availability, which has a reason unless it is usable."""
    answer = subject.cls.probe()  # type: ignore[attr-defined]
    assert isinstance(answer, Availability), f"it returned {type(answer).__name__}"
    assert answer.is_usable or answer.reason, f"it reports {answer.status} without a reason"


@check("contract", needs_hardware=False)
def probe_is_repeatable(subject: Subject) -> None:
    """Three calls of ``probe()`` return the same status."""
    answers = [subject.cls.probe().status for _ in range(3)]  # type: ignore[attr-defined]
    assert len(set(answers)) == 1, f"it returned {', '.join(answers)}"


@check("contract", needs_hardware=False)
def probe_imports_no_torch(subject: Subject) -> None:
    """In a new process, importing the plugin and probing do not import torch, which would slow down every command that probes it."""
    found = in_child(subject.record, "import", "probe")
    assert not found["imported_torch"], "import or probe imported torch"


@check("contract", needs_hardware=False)
def probe_is_quick(subject: Subject) -> None:
    """Importing the plugin and probing together take less than 10 s, the default time limit when accelkit probes a plugin."""
    found = in_child(subject.record, "import", "probe")
    assert found["seconds"] < 10, f"they took {found['seconds']:.1f} s"


@check("contract", needs_hardware=False)
def probe_leaves_fork_usable(subject: Subject) -> None:
    """After the probe, a forked process still works and can itself probe."""
    if not hasattr(__import__("os"), "fork"):
        return
    found = in_child(subject.record, "import", "probe", "fork")
    assert found["fork"] == 0, f"a process that was forked after the probe ended with {found['fork']}"


@check("contract", needs_hardware=False)
def instance_needs_no_arguments(subject: Subject) -> None:
    """The class can be instantiated without arguments. An instance has the name under which it is selected, and its ``repr`` contains the
    name and the plugin."""
    instance = loading.instantiate(subject.cls, subject.record)
    assert instance.name == subject.record.name
    assert subject.record.plugin in repr(instance), f"{instance!r} does not name its plugin"
    assert subject.record.name in repr(instance), f"{instance!r} does not contain its name"


@check("contract", needs_hardware=False)
def capabilities_are_known(subject: Subject) -> None:
    """``declared_capabilities`` is a Capabilities, which rejects unknown keys, and its dtypes exist in torch."""
    import torch

    declared = subject.cls.declared_capabilities  # type: ignore[attr-defined]
    assert isinstance(declared, Capabilities), f"declared_capabilities is {type(declared).__name__}"
    dtypes = [key for key in declared if key.partition(".")[0] in ("dtype", "autocast")]
    unknown = [key for key in dtypes if not isinstance(getattr(torch, key.partition(".")[2], None), torch.dtype)]
    assert not unknown, f"torch has no dtype of {', '.join(unknown)}"


@check("contract", needs_hardware=False)
def something_is_declared(subject: Subject) -> None:
    """At least ``dtype.float32`` is declared, because a plugin without declarations promises nothing."""
    assert subject.cls.declared_capabilities["dtype.float32"] != "undeclared", "dtype.float32 is not declared"  # type: ignore[attr-defined]


@check("contract", needs_hardware=False)
def invalid_devices_are_refused(subject: Subject) -> None:
    """For a value that does not name devices, ``parse_devices`` raises a DevicesError that contains the value."""
    instance = loading.instantiate(subject.cls, subject.record)
    instance.auto_device_count = lambda: 2
    for nonsense in ("nonsense", "0,x", -7, "0;1"):
        with raises(DevicesError, about=str(nonsense), doing=f"parse_devices({nonsense!r})"):
            instance.parse_devices(nonsense)


@check("contract", needs_hardware=False)
def methods_keep_their_signatures(subject: Subject) -> None:
    """Methods that the class overrides can be called with the arguments of the specification."""
    for name, theirs in vars(Accelerator).items():
        mine = inspect.getattr_static(subject.cls, name, None)
        if name.startswith("_") or not inspect.isfunction(theirs) or mine is theirs or mine is None:
            continue
        function = mine.__func__ if isinstance(mine, classmethod | staticmethod) else mine
        if not inspect.isfunction(function):
            continue
        wanted = [p for p in list(inspect.signature(theirs).parameters.values())[1:] if p.kind is p.POSITIONAL_OR_KEYWORD]
        signature = inspect.signature(function)
        given = {parameter.name: None for parameter in wanted}
        try:
            signature.bind(*([] if isinstance(mine, staticmethod) else [None]), **given)
        except TypeError as error:
            raise AssertionError(f"{name}{signature} cannot be called with the arguments of the specification: {error}") from error


@check("contract", needs_hardware=False)
def metadata_declares_requirements(subject: Subject) -> None:
    """The distribution requires ``accelkit`` in its metadata, so that an incompatible version is detected before the plugin is imported."""
    import importlib_metadata
    from packaging.requirements import Requirement

    if subject.record.is_builtin or subject.record.distribution == FROM_CODE:
        return
    names = {Requirement(need).name.lower() for need in importlib_metadata.distribution(subject.record.distribution).requires or []}
    assert "accelkit" in names, f"{subject.record.plugin} does not require accelkit"


@check("contract", needs_hardware=False, kind="precision")
def precision_is_documented(subject: Subject) -> None:
    """A precision's class has a docstring, and an instance has the name under which it is selected."""
    _check_named(subject)


@check("contract", needs_hardware=False, kind="strategy")
def strategy_is_documented(subject: Subject) -> None:
    """A strategy's class has a docstring, and an instance has the name under which it is selected."""
    _check_named(subject)


@check("contract", needs_hardware=False, kind="cluster")
def cluster_is_documented(subject: Subject) -> None:
    """A cluster environment's class has a docstring, and an instance has the name under which it is selected."""
    _check_named(subject)


@check("contract", needs_hardware=False, kind="cluster")
def detection_changes_nothing(subject: Subject) -> None:
    """``detect_cluster`` returns None or a Detection, and does not change ``os.environ``."""
    import os

    from accelkit import Detection

    before = dict(os.environ)
    answer = loading.instantiate(subject.cls, subject.record).detect_cluster(dict(os.environ))
    assert answer is None or isinstance(answer, Detection), f"it returned {type(answer).__name__}"
    assert dict(os.environ) == before, "it changed os.environ"


def _check_named(subject: Subject) -> None:
    assert issubclass(subject.cls, loading.base_class(subject.record.kind))
    assert (vars(subject.cls).get("__doc__") or "").strip(), f"{subject.cls.__name__} has no docstring"
    instance = loading.instantiate(subject.cls, subject.record)
    assert instance.name == subject.record.name


@check("contract", needs_hardware=False)
def command_line_lists_it(subject: Subject) -> None:
    """``accelkit info NAME --kind KIND --json`` describes the plugin, and does not import torch."""
    import json

    if subject.record.distribution == FROM_CODE:
        return
    code = (
        "import sys; from accelkit.cli import main; sys.argv = ['accelkit', 'info', *sys.argv[1:], '--json']\n"
        "try:\n    main()\nfinally:\n    sys.stderr.write('\\n' + str('torch' in sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", code, subject.record.name, "--kind", subject.record.kind],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr[-400:]
    assert json.loads(run.stdout)["plugin"] == subject.record.plugin
    assert run.stderr.splitlines()[-1] == "False", "accelkit info imported torch"
