"""Results of probes are cached: auto needs no child process while nothing has changed on the machine."""

from __future__ import annotations

import time

import pytest

from accelkit.selection import decide, select

pytestmark = pytest.mark.usefixtures("forked_interpreters")

SOURCE = """
import pathlib
from accelkit import Accelerator, Availability

HERE = pathlib.Path(__file__)

class Some(Accelerator):
    device_type = "cpu"
    is_simulated = {is_simulated}

    @classmethod
    def probe(cls):
        with HERE.with_suffix(".log").open("a") as log:
            log.write("x")
        status = HERE.with_name("status").read_text()
        if status == "broken":
            raise RuntimeError("firmware too old")
        return Availability(status, "the card is " + status)
"""


class Card:
    """A device whose presence the test decides, and which counts its probes."""

    def __init__(self, site, is_simulated: bool) -> None:
        self._folder = site.folder
        site.install("vendor-some", SOURCE.format(is_simulated=is_simulated), accelerators={"some": "Some"})
        self.set("absent")

    def set(self, status: str) -> None:
        (self._folder / "status").write_text(status)

    def probes(self) -> int:
        """Return the number of probes since the last call."""
        log = self._folder / "vendor_some.log"
        number = len(log.read_text()) if log.exists() else 0
        log.write_text("")
        return number


@pytest.fixture
def card(plugin_site, request):
    return Card(plugin_site, getattr(request, "param", False))


def reason() -> str:
    (found,) = [candidate.reason for candidate in decide("auto").candidates if candidate.name == "some"]
    return found


def test_an_absent_device_is_not_probed_again_while_nothing_changes(card):
    assert reason() == "the card is absent"
    assert card.probes() == 1
    assert reason().startswith("the card is absent (probed "), "it says that this is not new"
    assert card.probes() == 0
    decide("auto", is_fresh=True)
    assert card.probes() == 1, "accelkit why probes again"


@pytest.mark.parametrize("change", ["a variable", "ten minutes", "the clock is set back", "a package"])
def test_a_change_of_the_machine_ends_the_cached_result(card, monkeypatch, tmp_path, change):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    reason()
    card.set("usable")
    now = time.time()
    if change == "a variable":
        monkeypatch.setenv("VENDOR_VISIBLE_CARDS", "0")
    elif change == "a package":
        (packages / "vendor_driver").mkdir()
    else:
        monkeypatch.setattr(time, "time", lambda: now + (601 if change == "ten minutes" else -1))
    assert decide("auto").chosen == "some"


def test_a_device_that_is_gone_is_not_chosen(card):
    card.set("usable")
    assert decide("auto").chosen == "some"
    card.set("absent")
    assert decide("auto").chosen == "some", "the cached result is used"
    assert select("auto").accelerator.name == "cpu", "the device is probed in this process before it is used"


def test_a_broken_device_is_probed_each_time(card):
    card.set("broken")
    with pytest.warns(RuntimeWarning, match="firmware too old"):
        decide("auto")
    card.set("usable")
    assert decide("auto").chosen == "some"


@pytest.mark.parametrize("card", [True], indirect=True)
def test_a_simulated_device_is_probed_once_for_each_version(card, monkeypatch):
    decide("auto")
    assert card.probes() == 1
    monkeypatch.setenv("VENDOR_VISIBLE_CARDS", "0")
    assert decide("auto").chosen == "cpu"
    assert card.probes() == 0
