"""Requirements for the class, the declarations and the metadata of plugins of all kinds. No check needs the hardware of the plugin."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

from accelkit import AccelkitError, Availability, Capabilities, DevicesError
from accelkit.discovery import loading
from accelkit.specs.static_checks.rules import TORCH_AT_IMPORT, find_mistakes
from accelkit.types import FROM_CODE
from accelkit_conformance.checks import EVERY_KIND, check
from accelkit_conformance.late_errors import raises
from accelkit_conformance.subprocess_checks import in_child

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SETTINGS = {
    **dict.fromkeys(("world_size", "global_rank", "local_rank", "local_world_size", "node_rank", "num_nodes", "main_port"), int),
    "main_address": str,
    "creates_processes_externally": bool,
    "restart_count": int,
    "job_id": str | None,
}
"""The types of a cluster environment's settings."""


def _assert_no_mistakes(subject: Subject, rule: str) -> None:
    found = find_mistakes(subject.record.kind, subject.cls, [rule])
    assert not found, " | ".join(map(str, found))


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def class_is_documented(subject: Subject) -> None:
    """The class has a docstring of its own."""
    _assert_no_mistakes(subject, "documented")


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def names_are_known(subject: Subject) -> None:
    """Public members have neither misspelt names nor names from other frameworks, such as ``device_count`` instead of an accelerator's
    ``auto_device_count``. accelkit would ignore a member with such a name. A name is reported only if the class lacks the member of the
    specification that was probably meant. Members that the plugin's own code uses are left out.
    """
    _assert_no_mistakes(subject, "names")


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def members_have_the_right_form(subject: Subject) -> None:
    """The class overrides methods of the specification only with callables, and overrides no property or attribute of the specification
    with a method. Attributes that accelkit reads from the class are not properties. ``name`` and ``plugin``, which accelkit sets in each
    instance, are not read-only properties. The ``probe`` of an accelerator is a classmethod, and no method is a coroutine. A generator
    method that must return a context manager is decorated with ``@contextlib.contextmanager``."""
    _assert_no_mistakes(subject, "forms")


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def methods_keep_their_signatures(subject: Subject) -> None:
    """Methods that the plugin's class overrides can be called with the arguments of the specification. The class implements all required
    methods, and its constructor needs no arguments."""
    _assert_no_mistakes(subject, "signatures")


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def attributes_have_the_right_type(subject: Subject) -> None:
    """The attributes of the class have the types that the specification declares. The ``device_type`` of an accelerator is an identifier in
    lower case."""
    _assert_no_mistakes(subject, "attributes")


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def capabilities_exist(subject: Subject) -> None:
    """No declared or required capability has a misspelt prefix or dtype, such as ``bf16`` in ``autocast.bf16``."""
    _assert_no_mistakes(subject, "capabilities")


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def methods_return_values(subject: Subject) -> None:
    """No method or property returns a value of a built-in type that the specification does not allow, such as None instead of a module, or
    a string instead of a number. The check reads the source and the annotations without calling the methods, and reports only values whose
    type is certain."""
    _assert_no_mistakes(subject, "results")


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def hooks_are_implemented(subject: Subject) -> None:
    """Every hook implementation is marked with ``@hookimpl``, has the name of a hook, and takes only arguments of that hook."""
    _assert_no_mistakes(subject, "hooks")


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def import_needs_no_torch(subject: Subject) -> None:
    """In a new process, importing the plugin does not import torch."""
    assert not in_child(subject.record, "import")["imported_torch"], str(TORCH_AT_IMPORT)


@check("contract", needs_hardware=False)
def probe_answers(subject: Subject) -> None:
    """``probe()`` can be called on the class and returns an Availability. An Availability whose status is not ``usable`` has a reason."""
    answer = subject.cls.probe()  # type: ignore[attr-defined]
    assert isinstance(answer, Availability), f"it returned {type(answer).__name__}"
    assert answer.is_usable or answer.reason, f"it reports {answer.status} without a reason"


@check("contract", needs_hardware=False)
def probe_is_repeatable(subject: Subject) -> None:
    """Three calls to ``probe()`` return the same status."""
    answers = [subject.cls.probe().status for _ in range(3)]  # type: ignore[attr-defined]
    assert len(set(answers)) == 1, f"it returned {', '.join(answers)}"


@check("contract", needs_hardware=False)
def probe_imports_no_torch(subject: Subject) -> None:
    """In a new process, importing and probing the plugin do not import torch. Importing torch would slow down every command that probes
    plugins."""
    found = in_child(subject.record, "import", "probe")
    assert not found["imported_torch"], "import or probe imported torch"


@check("contract", needs_hardware=False)
def probe_is_quick(subject: Subject) -> None:
    """Importing and probing the plugin together take less than 10 s, the default time limit when accelkit probes a plugin."""
    found = in_child(subject.record, "import", "probe")
    assert found["seconds"] < 10, f"importing and probing took {found['seconds']:.1f} s"


@check("contract", needs_hardware=False)
def probe_leaves_fork_usable(subject: Subject) -> None:
    """After the probe, a forked process still works and can itself probe the plugin."""
    if not hasattr(__import__("os"), "fork"):
        return
    found = in_child(subject.record, "import", "probe", "fork")
    code = found["fork"]
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    assert code == 0, f"a process that was forked after the probe ended with {how}"


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def instance_has_its_name(subject: Subject) -> None:
    """The class can be instantiated without arguments. Unless the plugin is a hook plugin, the ``name`` of the instance is the name under
    which the plugin is selected."""
    instance = loading.instantiate(subject.cls, subject.record)
    if subject.record.kind != "hooks":
        assert instance.name == subject.record.name, f"its name is {instance.name!r} instead of {subject.record.name!r}"


@check("contract", needs_hardware=False)
def repr_names_the_plugin(subject: Subject) -> None:
    """The ``repr`` of an instance contains the instance's name and the plugin's ``dist==version``."""
    instance = loading.instantiate(subject.cls, subject.record)
    assert subject.record.plugin in repr(instance), f"{instance!r} does not name its plugin"
    assert subject.record.name in repr(instance), f"{instance!r} does not contain its name"


@check("contract", needs_hardware=False)
def capabilities_are_known(subject: Subject) -> None:
    """``declared_capabilities`` is a Capabilities object. For each key ``dtype.<name>`` or ``autocast.<name>``, torch has a dtype of
    this name. Keys without a prefix such as ``dtype.`` need no test, because the constructor of Capabilities rejects unknown ones."""
    import torch

    declared = subject.cls.declared_capabilities  # type: ignore[attr-defined]
    assert isinstance(declared, Capabilities), f"declared_capabilities is {type(declared).__name__}"
    dtypes = [key for key in declared if key.partition(".")[0] in ("dtype", "autocast")]
    unknown = [key for key in dtypes if not isinstance(getattr(torch, key.partition(".")[2], None), torch.dtype)]
    assert not unknown, f"torch has no dtype for {', '.join(unknown)}"


@check("contract", needs_hardware=False)
def invalid_devices_are_refused(subject: Subject) -> None:
    """For a value that does not name devices, ``parse_devices`` raises a DevicesError that contains the value."""
    instance = loading.instantiate(subject.cls, subject.record)
    instance.auto_device_count = lambda: 2
    for nonsense in ("nonsense", "0,x", -7, "0;1"):
        with raises(subject, DevicesError, about=str(nonsense), doing=f"parse_devices({nonsense!r})"):
            instance.parse_devices(nonsense)


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def metadata_declares_requirements(subject: Subject) -> None:
    """The metadata of the plugin's distribution declares a dependency on ``accelkit``, so that an incompatible version of accelkit is
    detected before the plugin is imported."""
    import importlib_metadata
    from packaging.requirements import Requirement

    if subject.record.is_builtin or subject.record.distribution == FROM_CODE:
        return
    names = {Requirement(need).name.lower() for need in importlib_metadata.distribution(subject.record.distribution).requires or []}
    hint = 'add "accelkit>=0.1" to dependencies in pyproject.toml'
    assert "accelkit" in names, f"{subject.record.plugin} does not require accelkit; {hint}"


@check("contract", needs_hardware=False, kind="cluster")
def detection_changes_nothing(subject: Subject) -> None:
    """``detect_cluster`` returns None or a ClusterDetection, and does not change ``os.environ``."""
    import os

    from accelkit import ClusterDetection

    before = dict(os.environ)
    answer = loading.instantiate(subject.cls, subject.record).detect_cluster(dict(os.environ))
    assert answer is None or isinstance(answer, ClusterDetection), f"it returned {type(answer).__name__}"
    assert dict(os.environ) == before, "it changed os.environ"


@check("contract", needs_hardware=False, kind="cluster")
def settings_have_the_right_type(subject: Subject) -> None:
    """Each property of the cluster environment that can be read in this process has the type that the specification declares for it. For
    example, ranks, sizes and the port are ints. Reading a property whose variable is missing may raise KeyError or one of accelkit's
    errors."""
    environment = loading.instantiate(subject.cls, subject.record)
    for name, expected in _SETTINGS.items():
        with contextlib.suppress(AccelkitError, KeyError):
            value = getattr(environment, name)
            is_right = isinstance(value, expected) and (expected is not int or not isinstance(value, bool))
            assert is_right, f"{name} is {value!r} ({type(value).__name__}); expected {getattr(expected, '__name__', expected)}"


@check("contract", needs_hardware=False, kind=EVERY_KIND)
def command_line_lists_it(subject: Subject) -> None:
    """``accelkit info NAME --kind KIND --json`` succeeds, gives the distribution and the version of the plugin, and does not import torch.
    A plugin that no distribution provides is not checked."""
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
