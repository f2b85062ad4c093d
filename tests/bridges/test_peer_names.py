"""No public name of Accelerate's Accelerator, of Fabric or of the Trainer that Runtime lacks is answered without a hint."""

from __future__ import annotations

import importlib
import inspect

import accelerate
import pytest
from lightning.fabric import Fabric
from lightning.pytorch import Trainer

import accelkit
from accelkit.peer_names import peers, rows

CLASSES = {"accelerate": accelerate.Accelerator, "fabric": Fabric, "trainer": Trainer}
pytestmark = pytest.mark.filterwarnings(r"ignore:::(lightning|lightning_utilities)(\.|$)", r"ignore:.*(srun|LeafSpec|treespec).*")
OPTIONS = {"accelerate": {"cpu": True}, "fabric": {"accelerator": "cpu", "devices": 1}, "trainer": {"accelerator": "cpu", "logger": False}}
OURS = {name for name in dir(accelkit.Runtime) if not name.startswith("_")} | {"accelerator", "cluster", "plugin_manager", "strategy"}
PARAMETERS = set(inspect.signature(accelkit.Runtime).parameters)


def public(names) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def attributes():
    return [(key, name) for key, cls in CLASSES.items() for name in sorted(public(dir(cls)) - OURS)]


def arguments():
    return [(key, name) for key, cls in CLASSES.items() for name in sorted(public(inspect.signature(cls).parameters) - PARAMETERS)]


def rows_of(key, kind):
    return [row for row in rows() if row.kind == kind and key in row.peers]


@pytest.fixture(scope="module")
def rt():
    return accelkit.Runtime("cpu")


@pytest.mark.parametrize(("key", "name"), attributes())
def test_an_attribute_of_theirs_has_a_hint(rt, key, name):
    with pytest.raises(accelkit.UnknownAttributeError) as caught:
        getattr(rt, name)
    (row,) = [row for row in rows_of(key, "attributes") if name in row.names]
    assert f"docs/{peers()[row.peers[0]].page}" in caught.value.hint
    assert peers()[key].title in caught.value.why


@pytest.mark.parametrize(("key", "name"), arguments())
def test_an_argument_of_theirs_has_a_hint(key, name):
    with pytest.raises(accelkit.UnknownArgumentError) as caught:
        accelkit.Runtime("cpu", **{name: None})
    assert [row for row in rows_of(key, "arguments") if name in row.names]
    assert peers()[key].title in caught.value.why


@pytest.mark.parametrize("key", CLASSES)
def test_what_only_an_instance_has_is_in_the_table(key):
    theirs = public(vars(CLASSES[key](**OPTIONS[key]))) - OURS
    assert theirs <= {name for row in rows_of(key, "attributes") for name in row.names}


@pytest.mark.newest_peers
@pytest.mark.parametrize("key", CLASSES)
def test_the_table_has_no_name_that_they_do_not_have(key):
    theirs = public(dir(CLASSES[key](**OPTIONS[key])))
    assert {name for row in rows_of(key, "attributes") for name in row.names} <= theirs
    assert {name for row in rows_of(key, "arguments") for name in row.names} <= set(inspect.signature(CLASSES[key]).parameters)


@pytest.mark.newest_peers
def test_the_functions_of_the_table_are_theirs():
    homes = ("accelerate", *(f"accelerate.{name}" for name in ("utils", "local_sgd", "logging", "state")))
    modules = [importlib.import_module(name) for name in homes]
    for row in rows_of("accelerate", "functions"):
        for name in row.names:
            assert any(hasattr(module, name) for module in modules), f"Accelerate has no {name}"
