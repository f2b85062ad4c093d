"""Registering from code: the records and rules of a package."""

from __future__ import annotations

import pytest

import accelkit
from accelkit.discovery import catalog
from accelkit.discovery.loading import load_class


class Notebook(accelkit.Accelerator):
    """Made in a notebook."""

    device_type = "cpu"


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(catalog, "_registered", {})
    yield
    accelkit.refresh()


@pytest.mark.usefixtures("registry")
def test_a_registered_class_is_a_record_like_any_other():
    accelkit.register("note", Notebook, description="From a notebook")
    record = catalog.find("accelerator", "note")
    assert (record.plugin, record.description) == (f"(code)=={__name__}", "From a notebook")
    assert load_class(record) is Notebook
    accelkit.register("note", Notebook)
    assert catalog.find("accelerator", "note").description == "Made in a notebook."
    assert accelkit.select("note").accelerator.name == "note"


@pytest.mark.usefixtures("registry")
def test_it_cannot_take_a_name(error_text):
    for name, owner in [("cpu", "accelkit"), ("gpu", "accelkit")]:
        with pytest.raises(accelkit.NameConflictError) as caught:
            accelkit.register(name, Notebook)
        assert f"{name!r}" in str(caught.value)
        assert owner in str(caught.value)
        assert caught.value == error_text

    class Other(accelkit.Accelerator):
        pass

    accelkit.register("note", Notebook)
    with pytest.raises(accelkit.NameConflictError) as caught:
        accelkit.register("note", Other)
    assert "'note'" in caught.value.what
    assert caught.value == error_text


@pytest.mark.usefixtures("registry")
def test_the_kind_comes_from_the_base_class():
    class Scheduler(accelkit.ClusterEnvironment):
        pass

    class Log:
        pass

    accelkit.register("mine", Scheduler)
    accelkit.register("log", Log)
    assert catalog.find("cluster", "mine").kind == "cluster"
    assert catalog.find("hooks", "log").kind == "hooks"


def test_what_is_no_class_or_no_name_is_refused(error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.register("note", Notebook())
    assert "'note'" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.register("no te", Notebook)
    assert "'no te'" in caught.value.what
    assert caught.value == error_text
