"""Selection by name and by auto, and the Decision it leaves."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import accelkit
from accelkit.discovery import autoload, catalog
from accelkit.selection import auto, decide, load_named, resolve, select

pytestmark = pytest.mark.usefixtures("forked_interpreters")

CLASS = """
from accelkit import Accelerator, Availability

class Some(Accelerator):
    device_type = "cpu"
    {attributes}

    @classmethod
    def probe(cls):
        {probe}
"""


def install(site, name, probe="return Availability.usable('it is here')", attributes="", **options):
    site.install(f"vendor-{name}", CLASS.format(probe=probe, attributes=attributes), accelerators={name: "Some"}, **options)


@pytest.fixture(autouse=True)
def nothing_warned_yet(monkeypatch):
    monkeypatch.setattr(auto, "_warned", set())


def test_a_builtin_by_name():
    selection = select("cpu")
    assert (selection.accelerator.name, selection.accelerator.plugin, selection.devices) == ("cpu", "accelkit==0.1.0", None)
    assert str(selection.decision).splitlines()[0] == "accelerator cpu from accelkit==0.1.0: 'cpu' (argument)"


def test_nothing_said_is_auto_and_auto_falls_to_the_cpu():
    decision = select().decision
    assert (decision.requested, decision.source, decision.chosen) == ("auto", "default", "cpu")
    assert decision.candidates[0].status == "chosen"
    assert {candidate.name: candidate.status for candidate in decision.candidates}["cuda"] == "absent"
    assert "no other accelerator is available on this machine" in decision.notes


def test_the_environment_is_asked_when_no_argument_is_given(monkeypatch, error_text):
    monkeypatch.setenv("ACCELKIT_ACCELERATOR", "cpu")
    monkeypatch.setenv("ACCELKIT_DEVICES", "0,")
    selection = select()
    assert (selection.decision.source, selection.devices) == ("ACCELKIT_ACCELERATOR", "0,")
    assert select("auto").decision.source == "argument"
    assert (select(devices=1).devices, select(devices="1,").devices, select(devices=[0]).devices) == (1, "1,", [0])
    assert select("cpu", cpu=True).devices is None, "cpu=True is on the CPU's own device, whatever the environment says"
    monkeypatch.setenv("ACCELKIT_ACCELERATOR", "cuda")
    assert select(cpu=True).accelerator.name == "cpu"
    with pytest.raises(accelkit.UnavailableError) as caught:
        select()
    assert "'cuda'" in caught.value.what
    assert caught.value == error_text


def test_a_third_party_by_name_and_qualified(plugin_site):
    install(plugin_site, "some")
    for name in ("some", "vendor-some:some", "Vendor_Some:some"):
        selection = select(name)
        assert (selection.accelerator.name, selection.accelerator.plugin) == ("some", "vendor-some==1.0")


def test_the_first_load_is_tried_in_a_child_and_remembered(plugin_site):
    once = "import pathlib\nwith pathlib.Path(__file__).with_suffix('.log').open('a') as log: log.write('x')\n"
    source = once + CLASS.format(probe="return Availability.usable()", attributes="")
    plugin_site.install("vendor-some", source, accelerators={"some": "Some"})
    log = plugin_site.folder / "vendor_some.log"
    select("some")
    assert log.read_text() == "xx", "one import in the child, one here"
    select("some")
    assert log.read_text() == "xx", "remembered, and imported here already"


def test_a_segfault_by_name_is_an_error_and_the_host_goes_on(plugin_site, error_text):
    plugin_site.install("vendor-crash", "import ctypes; ctypes.string_at(0)", accelerators={"crash": "Some"}, version="2.0")
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        select("crash")
    text = str(caught.value)
    for part in ("vendor-crash==2.0", "SIGSEGV", "ACCELKIT_DISABLE_PLUGINS=vendor-crash"):
        assert part in text
    assert caught.value == error_text


def test_an_absent_device_by_name_is_an_error_with_exit_code_4(plugin_site, error_text):
    install(plugin_site, "some", "return Availability.absent('no card in this machine', 'insert one')")
    with pytest.raises(accelkit.UnavailableError) as caught:
        select("some")
    assert "'some'" in caught.value.what
    assert caught.value.plugin == "vendor-some==1.0"
    assert (caught.value.why, caught.value.hint) == ("no card in this machine", "insert one"), "the vendor's own words"
    assert caught.value == error_text
    assert caught.value.exit_code == 4


def test_auto_takes_the_one_usable_third_party(plugin_site):
    install(plugin_site, "some")
    install(plugin_site, "other", "return Availability.absent('no card')")
    decision = select().decision
    assert (decision.chosen, decision.plugin) == ("some", "vendor-some==1.0")
    assert {candidate.name: candidate.status for candidate in decision.candidates}["cpu"] == "usable"


def test_auto_never_takes_a_simulated_device(plugin_site, error_text):
    install(plugin_site, "some", attributes="is_simulated = True")
    decision = select().decision
    assert decision.chosen == "cpu"
    reason = next(c for c in decision.candidates if c.name == "some").reason
    assert "simulated" in reason
    assert reason == error_text
    assert select("some").accelerator.name == "some"


def test_auto_refuses_to_guess_among_several(plugin_site, monkeypatch, error_text):
    install(plugin_site, "some")
    install(plugin_site, "other")
    with pytest.raises(accelkit.AmbiguousError) as caught:
        select()
    assert "other, some" in caught.value.what
    for part in ("accelerator='other'", "ACCELKIT_ACCELERATOR=other", "ACCELKIT_AUTO_ORDER=other,some"):
        assert part in caught.value.hint
    assert caught.value == error_text
    monkeypatch.setenv("ACCELKIT_AUTO_ORDER", "cuda, some, other")
    decision = select().decision
    (note,) = decision.notes
    assert decision.chosen == "some"
    assert "ACCELKIT_AUTO_ORDER" in note
    assert note == error_text


def test_an_order_may_say_which_of_two_plugins_of_one_name_is_meant(plugin_site, monkeypatch):
    install(plugin_site, "some")
    plugin_site.install(
        "vendor-twin", CLASS.format(probe="return Availability.usable('it is here')", attributes=""), accelerators={"some": "Some"}
    )
    monkeypatch.setenv("ACCELKIT_AUTO_ORDER", "vendor-twin:some,cpu")
    assert select().decision.plugin == "vendor-twin==1.0"
    monkeypatch.setenv("ACCELKIT_AUTO_ORDER", "some,cpu")
    with pytest.raises(accelkit.NameConflictError, match="some"):
        select()


def test_an_order_in_which_nothing_is_usable_is_no_silent_cpu(monkeypatch, error_text):
    monkeypatch.setenv("ACCELKIT_AUTO_ORDER", "cuda,mps")
    with pytest.raises(accelkit.UnavailableError) as caught:
        select()
    assert "ACCELKIT_AUTO_ORDER=cuda" in caught.value.what
    assert caught.value == error_text
    assert "'cpu'" in caught.value.hint
    monkeypatch.setenv("ACCELKIT_AUTO_ORDER", "cuda,gpux")
    with pytest.raises(accelkit.UnknownNameError) as caught:
        select()
    assert "ACCELKIT_AUTO_ORDER" in caught.value.what
    assert "'gpux'" in caught.value.what
    assert caught.value == error_text


def test_auto_warns_once_of_what_is_there_and_broken(plugin_site, error_text):
    install(plugin_site, "some", "raise RuntimeError('firmware too old')")
    with pytest.warns(RuntimeWarning) as caught:
        assert select().accelerator.name == "cpu"
    assert "'some'" in str(caught[0].message)
    assert caught[0] == error_text
    assert select().accelerator.name == "cpu", "a second warning would be an error here"


def test_auto_warns_once_of_a_name_that_two_plugins_claim(plugin_site, error_text):
    install(plugin_site, "some")
    assert select().accelerator.name == "some"
    source = CLASS.format(probe="return Availability.usable('it is here')", attributes="")
    plugin_site.install("vendor-twin", source, accelerators={"some": "Some"})
    with pytest.warns(RuntimeWarning) as caught:
        decision = select().decision
    assert decision.chosen == "cpu"
    assert decision.notes == ("auto ignored some (conflict); no other accelerator is available on this machine",)
    (warning,) = caught
    for part in ("vendor-some==1.0", "vendor-twin==1.0", "select vendor-some:some or vendor-twin:some"):
        assert part in str(warning.message)
    assert warning == error_text
    assert select().accelerator.name == "cpu", "a second warning would be an error here"


def test_auto_warns_of_an_incompatible_plugin(plugin_site, error_text):
    install(plugin_site, "some", requires=["torch>=99"])
    with pytest.warns(RuntimeWarning, match="ignores the incompatible accelerator 'some'") as caught:
        assert select().accelerator.name == "cpu"
    assert caught[0] == error_text


def test_gpu_says_which(monkeypatch, error_text):
    with pytest.raises(accelkit.UnavailableError) as caught:
        select("gpu")
    assert "gpu" in caught.value.what
    assert caught.value.what == error_text
    assert "cuda: " in caught.value.why
    assert "mps: " in caught.value.why


def test_an_alias_stands_for_the_only_usable_device(plugin_site):
    install(plugin_site, "xpu")
    decision = select("gpu").decision
    assert (decision.requested, decision.chosen, decision.plugin) == ("gpu", "xpu", "vendor-xpu==1.0")
    assert decision.notes == ("gpu stands for xpu here",)
    assert resolve("gpu").plugin == "vendor-xpu==1.0"


def test_an_alias_says_why_an_installed_plugin_is_not_used(plugin_site):
    install(plugin_site, "xpu", requires=["torch>=99"])
    with pytest.raises(accelkit.UnavailableError, match="xpu: .*torch>=99"):
        select("gpu")


@pytest.mark.parametrize("name", ["gpu", "auto", "torch"])
def test_an_order_consists_of_single_accelerators(monkeypatch, name):
    monkeypatch.setenv("ACCELKIT_AUTO_ORDER", f"{name},cpu")
    with pytest.raises(accelkit.UnknownNameError, match=f"ACCELKIT_AUTO_ORDER contains .*'{name}'") as caught:
        select()
    assert "did you mean" not in str(caught.value)


def test_an_alias_of_two_usable_devices_is_ambiguous(plugin_site, monkeypatch, error_text):
    install(plugin_site, "torch_tpu")
    torch_version = importlib.metadata.version("torch")
    plugin_site.install("torch_xla", version=torch_version.partition("+")[0])
    monkeypatch.setenv("PJRT_DEVICE", "CUDA")
    with pytest.raises(accelkit.AmbiguousError) as caught:
        decide("tpu")
    assert "'tpu'" in caught.value.what
    assert "torch_tpu, xla" in caught.value.why
    assert "accelerator='torch_tpu'" in caught.value.hint
    assert caught.value == error_text


def test_auto_names_a_disabled_plugin_and_its_reason(plugin_site, monkeypatch):
    install(plugin_site, "some")
    monkeypatch.setenv("ACCELKIT_DISABLE_PLUGINS", "vendor-some")
    accelkit.refresh()
    decision = select().decision
    (disabled,) = [candidate for candidate in decision.candidates if candidate.name == "some"]
    assert (decision.chosen, disabled.status) == ("cpu", "refused")
    assert "ACCELKIT_DISABLE_PLUGINS" in disabled.reason


def test_auto_warns_of_a_class_registered_from_code_whose_probe_fails(monkeypatch):
    class Mine(accelkit.Accelerator):
        device_type = "cpu"

        @classmethod
        def probe(cls):
            raise RuntimeError("firmware too old")

    monkeypatch.setattr(catalog, "_registered", {})
    accelkit.register("mine", Mine)
    try:
        with pytest.warns(RuntimeWarning, match="firmware too old") as caught:
            assert select().decision.chosen == "cpu"
        assert "ignores the broken accelerator 'mine'" in str(caught[0].message)
    finally:
        monkeypatch.undo()
        accelkit.refresh()


def test_auto_ignores_a_class_registered_from_code_whose_probe_says_that_its_device_is_unavailable(monkeypatch):
    class Mine(accelkit.Accelerator):
        device_type = "cpu"

        @classmethod
        def probe(cls):
            raise accelkit.UnavailableError("no driver")

    monkeypatch.setattr(catalog, "_registered", {})
    accelkit.register("mine", Mine)
    try:
        decision = select().decision
        assert decision.chosen == "cpu"
        assert [(one.status, one.reason) for one in decision.candidates if one.name == "mine"] == [("absent", "no driver")]
    finally:
        monkeypatch.undo()
        accelkit.refresh()


def test_retired_names_say_so(error_text):
    with pytest.raises(accelkit.UnavailableError) as caught:
        select("ipu")
    assert "'ipu'" in caught.value.what
    assert caught.value == error_text
    assert caught.value.why
    assert caught.value.hint


def test_any_torch_device_without_a_plugin(error_text):
    selection = select("torch:cpu")
    assert (selection.accelerator.name, selection.accelerator.device_type) == ("torch:cpu", "cpu")
    with pytest.raises(accelkit.UsageError) as caught:
        select("torch:")
    assert "device_type" in caught.value.why
    assert caught.value == error_text


def test_an_instance():
    class Mine(accelkit.Accelerator):
        device_type = "cpu"

    mine = Mine()
    selection = select(mine)
    assert selection.accelerator is mine
    assert (mine.name, mine.plugin) == ("cpu", f"(code)=={__name__}")


def test_contradictions_and_wrong_types(error_text):
    with pytest.raises(accelkit.ContradictionError) as caught:
        select("cuda", cpu=True)
    assert "cpu=True" in caught.value.what
    assert "accelerator='cuda'" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(accelkit.UsageError, match="accelerator=3"):
        select(3)
    with pytest.raises(accelkit.UsageError, match="accelerator='  '"):
        select("  ")


def test_decide_runs_no_third_party_code_here(plugin_site):
    install(plugin_site, "some")
    decide("some")
    decide()
    assert "vendor_some" not in sys.modules


def test_a_precision_by_name(error_text):
    loaded = load_named("precision", "32-true")
    assert issubclass(loaded.cls, accelkit.Precision)
    assert loaded.record.plugin == "accelkit==0.1.0"
    with pytest.raises(accelkit.UnknownNameError) as caught:
        load_named("precision", "bf16-mixde")
    assert "'bf16-mixed'" in caught.value.hint
    assert caught.value == error_text


def test_two_claimants_of_privateuse1_are_reported_before_torch_is_imported(plugin_site, error_text):
    plugin_site.install("vendor-one", entry_points="[torch.backends]\none = vendor_one:_autoload")
    plugin_site.install("vendor-two", entry_points="[torch.backends]\ntwo = vendor_two:_autoload")
    code = "import sys, accelkit; print(accelkit.select('cpu').decision); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for part in ("vendor-one==1.0", "vendor-two==1.0", "PrivateUse1"):
        assert part in result.stderr
        assert part in result.stdout
    assert result.stdout == error_text
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in result.stdout
    assert result.stdout.endswith("False\n")


def test_three_claimants_of_privateuse1_all_claim_it(plugin_site):
    for name in ("one", "two", "three"):
        plugin_site.install(f"vendor-{name}", entry_points=f"[torch.backends]\n{name} = vendor_{name}:_autoload")
    claimants = "vendor-one==1.0 and vendor-three==1.0 and vendor-two==1.0 all claim PrivateUse1"
    assert autoload.privateuse1_conflict().startswith(claimants)


def test_selection_imports_no_torch():
    code = "import sys, accelkit; accelkit.select('cpu'); accelkit.select(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_auto_finds_out_that_a_candidate_lies_before_it_is_loaded_here(plugin_site, error_text):
    crash = "import ctypes; ctypes.string_at(0)"
    source = CLASS.format(probe="return Availability.usable()", attributes="") + f"\n    def load(self):\n        {crash}\n"
    plugin_site.install("vendor-liar", source, accelerators={"liar": "Some"})
    with pytest.warns(RuntimeWarning) as caught:
        decision = select().decision
    assert "'liar'" in str(caught[0].message)
    assert caught[0] == error_text
    assert decision.chosen == "cpu"
    assert "SIGSEGV" in str(caught[0].message)
    assert "load()" in str(caught[0].message)
