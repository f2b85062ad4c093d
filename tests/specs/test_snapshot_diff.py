"""What differs between two versions, whom it concerns, and what they must do."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from accelkit.specs.api_snapshot.diff import compare, spell
from accelkit.specs.api_snapshot.snapshot import read, record

FOUNDATION = json.loads(Path(__file__).with_name("foundation.json").read_text("utf-8"))
"""The specifications as they once were, before there were strategies of several processes."""


def changes_to_now(edit):
    """What ``compare`` finds from a version that was as now but for ``edit``: (name, what, concerns, what_to_do)."""
    old = copy.deepcopy(record())
    edit({name: one["members"] for name, one in old["specifications"].items()}, old["specifications"])
    return [(one.name, one.what, one.concerns, one.what_to_do) for one in compare(old, record())]


def reordered(members, *names):
    for name in names:
        members[name] = members.pop(name)


def test_nothing_changed():
    assert compare(record(), record()) == []


def test_from_the_foundation():
    found = {(one.name, one.what): one for one in compare(FOUNDATION, read("0.1.0"))}
    findings = {(one.name, one.what, one.concerns, one.what_to_do) for one in found.values() if one.concerns != "nobody"}
    assert findings == {
        ("Precision.for_accelerator", "is gone", "who uses it", "remove it: accelkit neither calls nor provides it"),
        ("Accelerator.is_available", "is gone", "who uses it", "remove it: accelkit neither calls nor provides it"),
        ("ClusterDetection.rank", "is gone", "who uses it", "stop using it"),
        ("RuntimeHooks.configured", "is gone", "who uses it", "remove it: accelkit neither calls nor provides it"),
        ("ClusterDetection.priority", "is new, without a default", "who uses it", "pass priority where you create the object"),
        (
            "ClusterEnvironment.validate_settings",
            "takes num_devices as int | None, no longer as int",
            "who overrides it",
            "expect int | None",
        ),
        (
            "ClusterEnvironment.validate_settings",
            "takes num_nodes as int | None, no longer as int",
            "who overrides it",
            "expect int | None",
        ),
        ("Strategy.num_processes", "now calls devices num_devices", "who uses it", "rename devices to num_devices"),
        ("Strategy.num_processes", "takes num_devices as int, no longer as list[int]", "who overrides it", "expect int"),
        (
            "Strategy.root_device",
            "takes devices as Sequence[int], no longer as list[int]",
            "who overrides it",
            "expect Sequence[int]",
        ),
        ("Strategy.wrap_module", "takes device too", "who uses it", "accept device too, and pass it where you call it"),
        ("RuntimeState.local_process_index", "is int | None, no longer int", "who uses it", "check that your code works with this type"),
        ("RuntimeState.num_nodes", "is int | None, no longer int", "who uses it", "check that your code works with this type"),
    }
    added = found["Strategy.join", "is new, with a default"]
    assert (added.aspect, added.concerns, added.what_to_do, added.old) == ("added", "nobody", "nothing", "")
    assert added.new == "join(modules: Sequence[torch.nn.Module]) -> AbstractContextManager[Any] | None"
    assert found["RuntimeHooks.process_group_initialized", "is new"].concerns == "nobody"
    assert found["EngineSettings", "is new"].concerns == "nobody"
    gone = found["Precision.for_accelerator", "is gone"]
    assert (gone.aspect, gone.new) == ("removed", "")
    assert gone.old.startswith("for_accelerator(accelerator: Accelerator")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        pytest.param(
            lambda now, _: now["Accelerator"].update(stop=now["Accelerator"].pop("step_end")),
            [
                ("Accelerator.step_end", "is new, with a default", "nobody", "nothing"),
                ("Accelerator.stop", "is gone", "who uses it", "remove it: accelkit neither calls nor provides it"),
            ],
            id="another name that is not near",
        ),
        pytest.param(
            lambda now, _: now["Accelerator"].update(step_ended=now["Accelerator"].pop("step_end")),
            [("Accelerator.step_end", "was step_ended", "who uses it", "rename step_ended to step_end")],
            id="renamed",
        ),
        pytest.param(
            lambda now, _: now["Accelerator"].update(autocast_device_type={"form": "attribute", "type": "str", "default": "''"}),
            [("Accelerator.autocast_device_type", "was an attribute, and is a property", "who uses it", "make it a property")],
            id="form",
        ),
        pytest.param(
            lambda now, _: now["EngineStrategy"]["step"].update(returns="None"),
            [("EngineStrategy.step", "returns bool, no longer None", "who overrides it", "return bool")],
            id="returns",
        ),
        pytest.param(
            lambda now, _: now["Strategy"]["root_device"]["parameters"].reverse(),
            [
                (
                    "Strategy.root_device",
                    "takes accelerator, devices, local_rank in this order",
                    "who uses it",
                    "accept and pass them in the order accelerator, devices, local_rank",
                )
            ],
            id="parameters reordered",
        ),
        pytest.param(
            lambda now, _: now["Strategy"]["setup"]["parameters"].append({"name": "rank", "type": "int"}),
            [("Strategy.setup", "no longer has rank", "who uses it", "remove rank")],
            id="a parameter is gone",
        ),
        pytest.param(
            lambda now, _: now["Accelerator"]["capabilities"]["parameters"].clear(),
            [("Accelerator.capabilities", "takes device too", "who overrides it", "accept device too")],
            id="a parameter with a default",
        ),
        pytest.param(
            lambda now, _: now["Accelerator"]["capabilities"]["parameters"][0].pop("default"),
            [
                (
                    "Accelerator.capabilities",
                    "takes None for device by default",
                    "who overrides it",
                    "give device the default None",
                )
            ],
            id="a parameter that has a default now",
        ),
        pytest.param(
            lambda now, _: now["Strategy"]["check"]["parameters"][0].update(default="None"),
            [("Strategy.check", "no longer has a default for accelerator", "who uses it", "pass accelerator where you call it")],
            id="a parameter that has none any more",
        ),
        pytest.param(
            lambda now, _: now["ClusterEnvironment"]["number"]["parameters"][1].pop("kind"),
            [("ClusterEnvironment.number", "takes least as keyword only", "who uses it", "accept and pass it as keyword only")],
            id="a parameter of another kind",
        ),
        pytest.param(
            lambda now, _: now["Accelerator"]["compile_backend"].update(type="ClassVar[str]"),
            [
                (
                    "Accelerator.compile_backend",
                    "is ClassVar[str | None], no longer ClassVar[str]",
                    "who overrides it",
                    "check that your code works with this type",
                )
            ],
            id="an attribute of another type",
        ),
        pytest.param(
            lambda now, _: now["Accelerator"]["default_strategy"].update(default="'ddp'"),
            [
                (
                    "Accelerator.default_strategy",
                    "is 'single_device' by default, no longer 'ddp'",
                    "who inherits it",
                    "define it if you want 'ddp'",
                )
            ],
            id="an attribute with another default",
        ),
        pytest.param(
            lambda now, _: now["Accelerator"]["is_simulated"].pop("default"),
            [("Accelerator.is_simulated", "has a default now, False", "nobody", "nothing")],
            id="an attribute that has a default now",
        ),
        pytest.param(
            lambda now, _: now["Accelerator"]["check"].update(is_required=True),
            [("Accelerator.check", "has a default now", "nobody", "nothing")],
            id="no longer abstract",
        ),
        pytest.param(
            lambda now, _: now["Accelerator"]["teardown"].pop("is_hook"),
            [
                (
                    "Accelerator.teardown",
                    "is a hook, called by the names of its arguments",
                    "who overrides it",
                    "check that it still does what you intend",
                )
            ],
            id="a method becomes a hook",
        ),
        pytest.param(
            lambda now, _: now["Accelerator"]["setup_device"]["parameters"].clear(),
            [("Accelerator.setup_device", "takes device too", "nobody", "nothing")],
            id="a parameter of a method that is a hook",
        ),
        pytest.param(
            lambda now, _: now["RuntimeHooks"].__delitem__("runtime_created"),
            [("RuntimeHooks.runtime_created", "is new", "nobody", "nothing")],
            id="a hook",
        ),
        pytest.param(
            lambda now, _: now["RuntimeHooks"]["process_group_initialized"]["parameters"].clear(),
            [("RuntimeHooks.process_group_initialized", "takes state too", "nobody", "nothing")],
            id="an argument of a hook",
        ),
        pytest.param(
            lambda now, _: now["RuntimeHooks"]["process_group_initialized"]["parameters"].append({"name": "rank", "type": "int"}),
            [("RuntimeHooks.process_group_initialized", "no longer has rank", "who overrides it", "remove rank")],
            id="an argument of a hook is gone",
        ),
        pytest.param(
            lambda now, _: now["RuntimeHooks"]["process_group_initialized"]["parameters"][0].update(name="runtime"),
            [
                ("RuntimeHooks.process_group_initialized", "takes state too", "nobody", "nothing"),
                ("RuntimeHooks.process_group_initialized", "no longer has runtime", "who overrides it", "remove runtime"),
            ],
            id="an argument of a hook is renamed",
        ),
        pytest.param(
            lambda now, _: now["PrecisionHooks"]["make_precision"]["parameters"].reverse(),
            [],
            id="arguments of a hook reordered: they come by name",
        ),
        pytest.param(
            lambda now, _: now["PrecisionHooks"]["make_precision"].pop("is_first_result"),
            [
                (
                    "PrecisionHooks.make_precision",
                    "is asked until one answers",
                    "who overrides it",
                    "check that it still does what you intend",
                )
            ],
            id="a hook's results",
        ),
        pytest.param(
            lambda now, _: now["ClusterDetection"].__delitem__("priority"),
            [("ClusterDetection.priority", "is new, without a default", "who uses it", "pass priority where you create the object")],
            id="a field of what plugins make",
        ),
        pytest.param(
            lambda now, _: now["Availability"].__delitem__("hint"),
            [("Availability.hint", "is new, with a default", "nobody", "nothing")],
            id="a field with a default",
        ),
        pytest.param(
            lambda now, _: now["Availability"].__delitem__("reason"),
            [("Availability.reason", "is new, with a default, and before hint", "who uses it", "pass hint by name")],
            id="a field with a default before others",
        ),
        pytest.param(
            lambda now, _: now["RuntimeState"].__delitem__("process_index"),
            [("RuntimeState.process_index", "is new, with a default", "nobody", "nothing")],
            id="a field with a default before others, of what plugins are given",
        ),
        pytest.param(
            lambda now, _: now["ClusterDetection"]["priority"].update(default="0"),
            [("ClusterDetection.priority", "no longer has a default", "who uses it", "pass priority where you create the object")],
            id="a field that has none any more",
        ),
        pytest.param(
            lambda now, _: now["Availability"]["hint"].update(default="'ask'"),
            [("Availability.hint", "is '' by default, no longer 'ask'", "nobody", "nothing")],
            id="a field with another default",
        ),
        pytest.param(
            lambda now, _: now["ClusterDetection"]["priority"].update(type="float"),
            [("ClusterDetection.priority", "is int, no longer float", "who uses it", "check that your code works with this type")],
            id="a field of another type",
        ),
        pytest.param(
            lambda now, _: reordered(now["ClusterDetection"], "name"),
            [("ClusterDetection", "has its fields in the order name, priority, reason", "who uses it", "pass them by name")],
            id="fields reordered",
        ),
        pytest.param(
            lambda now, _: now["EngineSettings"].__delitem__("device"),
            [("EngineSettings.device", "is new", "nobody", "nothing")],
            id="a field of what plugins are given",
        ),
        pytest.param(
            lambda now, _: reordered(now["EngineSettings"], "device"),
            [],
            id="fields of what plugins are given reordered",
        ),
        pytest.param(
            lambda now, _: now["EngineSettings"]["device"].update(default="None"),
            [("EngineSettings.device", "no longer has a default", "nobody", "nothing")],
            id="a field of what plugins are given that no longer has a default",
        ),
        pytest.param(
            lambda now, _: now["RuntimeState"].update(world=now["RuntimeState"]["num_nodes"]),
            [("RuntimeState.world", "is gone", "who uses it", "stop using it")],
            id="a field that is gone",
        ),
        pytest.param(
            lambda now, _: now["Availability"]["from_library"]["parameters"].pop(0),
            [("Availability.from_library", "takes soname too", "who uses it", "pass soname too")],
            id="a parameter of what plugins call",
        ),
        pytest.param(
            lambda now, _: now["Availability"]["from_library"]["parameters"].pop(1),
            [("Availability.from_library", "takes hint too", "nobody", "nothing")],
            id="a parameter with a default of what plugins call",
        ),
        pytest.param(
            lambda now, _: now["Availability"]["from_library"]["parameters"][1].update(default="'ask'"),
            [("Availability.from_library", "takes '' for hint by default, no longer 'ask'", "nobody", "nothing")],
            id="a parameter with another default of what plugins call",
        ),
        pytest.param(
            lambda now, _: now["Capabilities"]["can"].update(returns="str"),
            [("Capabilities.can", "returns bool, no longer str", "who uses it", "expect bool")],
            id="what a call returns",
        ),
        pytest.param(
            lambda _, specifications: specifications.update(Stream=specifications["EngineSettings"]),
            [("Stream", "is gone", "who uses it", "stop using it")],
            id="a specification is gone",
        ),
        pytest.param(
            lambda _, specifications: specifications.__delitem__("ClusterDetection"),
            [("ClusterDetection", "is new", "nobody", "nothing")],
            id="a specification",
        ),
    ],
)
def test_every_kind_of_change(edit, expected):
    assert changes_to_now(edit) == expected


def test_what_has_no_default_must_be_defined():
    """No specification of accelkit's does that to an older plugin: a method that is new, or that loses its default."""
    new = copy.deepcopy(record())
    members = new["specifications"]["Accelerator"]["members"]
    members["check"]["is_required"] = True
    members["wake"] = {"form": "method", "parameters": [], "returns": "None", "is_required": True}
    members["firmware"] = {"form": "attribute", "type": "str"}
    del members["device_type"]["default"]
    assert [(one.name, one.what, one.concerns, one.what_to_do) for one in compare(record(), new)] == [
        ("Accelerator.device_type", "no longer has a default", "who inherits it", "define it"),
        ("Accelerator.check", "no longer has a default", "who inherits it", "define it"),
        ("Accelerator.wake", "is new, without a default", "everybody", "define it"),
        ("Accelerator.firmware", "is new, without a default", "everybody", "define it"),
    ]


def test_members_are_spelled_as_in_a_class():
    found = {name: one["members"] for name, one in record()["specifications"].items()}
    number = found["ClusterEnvironment"]["address"]
    assert spell("address", number) == "address(*names: str, default: str | None = None) -> str"
    assert spell("declare", found["Capabilities"]["declare"]).startswith("declare(*, native: Iterable[str] = (), emulated")
    assert spell("world_size", found["ClusterEnvironment"]["world_size"]) == "world_size -> int"
    assert spell("priority", found["ClusterDetection"]["priority"]) == "priority: int"
    assert spell("device_type", found["Accelerator"]["device_type"]) == "device_type: ClassVar[str] = ''"
