"""The catalog: one row a name, with its status, whatever is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import accelkit
from accelkit.discovery import catalog, device_table
from accelkit.discovery.metadata import scan

GOOD = """
from accelkit import Accelerator, Availability

class Good(Accelerator):
    "A good device."
    device_type = "cpu"
    is_simulated = True

    @classmethod
    def probe(cls):
        return Availability.usable("always here")
"""


def rows(name):
    return [record for record in accelkit.plugins("accelerator") if record.name == name]


def test_an_installed_plugin_has_one_row_with_its_metadata(plugin_site):
    plugin_site.install("vendor-good", GOOD, accelerators={"good": "Good"}, summary="Good devices", version="1.2")
    (row,) = rows("good")
    assert (row.plugin, row.qualified_name, row.status) == ("vendor-good==1.2", "vendor-good:good", "available")
    assert (row.value, row.description, row.is_builtin) == ("vendor_good:Good", "Good devices", False)


def test_builtins_are_entry_points_of_the_own_distribution():
    builtin = {(record.kind, record.name) for record in accelkit.plugins() if record.is_builtin and not record.is_fallback}
    assert {("accelerator", "cpu"), ("accelerator", "cuda"), ("precision", "32-true"), ("cluster", "local")} <= builtin


def test_metadata_is_read_once_until_refresh(plugin_site):
    accelkit.plugins()
    (plugin_site.folder / "late-1.0.dist-info").mkdir()
    (plugin_site.folder / "late-1.0.dist-info" / "entry_points.txt").write_text("[accelkit.accelerators]\nlate = late:Late\n")
    assert rows("late") == []
    accelkit.refresh()
    assert len(rows("late")) == 1


@pytest.mark.parametrize(
    ("requires", "status", "reason"),
    [
        (["accelkit>=99"], "incompatible", "accelkit>=99"),
        (["torch<2"], "incompatible", "torch<2"),
        (["torch>=2.9", "accelkit>=0.1"], "available", ""),
        (['torch<2; python_version < "3"'], "available", ""),
        (['torch<2; extra == "old"'], "available", ""),
        (["torch (((", "accelkit>=0.1"], "broken", "'torch ((('"),
        (["numpy<0.1"], "available", ""),
    ],
)
def test_compatibility_is_known_before_import(plugin_site, requires, status, reason, error_text):
    plugin_site.install("vendor-good", "raise SystemExit('imported')", accelerators={"good": "Good"}, requires=requires)
    (row,) = rows("good")
    assert row.status == status
    assert reason in row.reason
    if row.reason:
        assert row.reason == error_text
    assert bool(row.hint) == (status != "available")
    if status == "incompatible":
        with pytest.raises(accelkit.IncompatiblePluginError) as caught:
            catalog.find("accelerator", "good")
        assert "'good'" in caught.value.what
        assert caught.value.plugin == "vendor-good==1.0"
        assert caught.value == error_text


def test_a_vendor_build_of_torch_satisfies_the_release_it_is_based_on(error_text):
    from accelkit.discovery.compatibility import objection

    assert objection(["torch>=2.13"], {"torch": "2.13.0a0+acme.git1"}.get) is None
    assert objection(["torch>=2.14"], {"torch": "2.13.0a0+acme.git1"}.get)[0] == "incompatible"
    missing = objection(["torch>=2.9"], {}.get)[1]
    assert "torch>=2.9" in missing
    assert missing == error_text
    unreadable = objection(["torch>=2.9"], {"torch": "main"}.get)[1]
    assert "torch" in unreadable
    assert unreadable == error_text


def test_a_name_claimed_twice_names_both_and_can_be_qualified(plugin_site, error_text):
    plugin_site.install("vendor-one", GOOD, accelerators={"good": "Good"})
    plugin_site.install("vendor-two", GOOD, accelerators={"good": "Good"}, version="2.0")
    assert {row.status for row in rows("good")} == {"conflict"}
    with pytest.raises(accelkit.NameConflictError) as caught:
        catalog.find("accelerator", "good")
    assert "vendor-two==2.0" in caught.value.why
    assert caught.value.plugin == "vendor-one==1.0"
    assert caught.value == error_text
    assert catalog.find("accelerator", "vendor-two:good").plugin == "vendor-two==2.0"
    assert catalog.find("accelerator", "Vendor_Two:good").plugin == "vendor-two==2.0"


def test_a_name_claimed_three_times_is_claimed_by_all(plugin_site):
    for name in ("one", "two", "three"):
        plugin_site.install(f"vendor-{name}", GOOD, accelerators={"good": "Good"})
    (reason,) = {row.reason for row in rows("good")}
    assert reason.endswith("==1.0 all claim the name good")


@pytest.mark.parametrize("name", ["cpu", "auto", "gpu", "xla"])
def test_a_third_party_cannot_take_a_builtin_or_reserved_name(plugin_site, name, error_text):
    plugin_site.install("vendor-greedy", GOOD, accelerators={name: "Good"})
    row = next(row for row in rows(name) if row.distribution == "vendor-greedy")
    assert row.status == "conflict"
    assert name in row.reason
    assert "accelkit" in row.reason
    assert row.reason == error_text
    with pytest.raises(accelkit.NameConflictError, match="vendor-greedy==1.0"):
        catalog.find("accelerator", f"vendor-greedy:{name}")
    assert catalog.find("accelerator", "cpu").is_builtin


def test_an_installed_plugin_wins_over_the_table_of_vendors(plugin_site):
    name = next(iter(device_table.vendors()))
    assert rows(name)[0].is_fallback
    plugin_site.install("vendor-real", GOOD, accelerators={name: "Good"})
    (row,) = rows(name)
    assert row.plugin == "vendor-real==1.0"


def test_allow_and_deny_lists(plugin_site, monkeypatch, error_text):
    plugin_site.install("vendor-good", GOOD, accelerators={"good": "Good"})
    for variable, value, status in [
        ("ACCELKIT_PLUGINS", "none", "disabled"),
        ("ACCELKIT_PLUGINS", "other", "disabled"),
        ("ACCELKIT_PLUGINS", "other, Vendor_Good", "available"),
        ("ACCELKIT_DISABLE_PLUGINS", "vendor.good", "disabled"),
        ("ACCELKIT_DISABLE_PLUGINS", "other", "available"),
    ]:
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            accelkit.refresh()
            assert rows("good")[0].status == status, (variable, value)
            assert rows("cpu")[0].status == "available"
            if status == "disabled":
                with pytest.raises(accelkit.DisabledPluginError) as caught:
                    catalog.find("accelerator", "good")
                assert "'good'" in caught.value.what
                assert variable in str(caught.value)
                assert caught.value.plugin == "vendor-good==1.0"
                assert caught.value == error_text


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("ACCELKIT_PLUGINS", "", "ACCELKIT_PLUGINS"),
        ("ACCELKIT_PLUGINS", " , ", "ACCELKIT_PLUGINS"),
        ("ACCELKIT_PLUGINS", "none,vendor-good", "'none'"),
        ("ACCELKIT_DISABLE_PLUGINS", "accelkit", "ACCELKIT_DISABLE_PLUGINS"),
    ],
)
def test_a_policy_that_cannot_be_used_is_an_error(monkeypatch, variable, value, text, error_text):
    monkeypatch.setenv(variable, value)
    accelkit.refresh()
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.plugins()
    assert text in str(caught.value)
    assert caught.value == error_text


def test_a_number_in_a_name_is_told_where_it_belongs():
    with pytest.raises(accelkit.UnknownNameError, match=r"accelerator='cuda', devices=\[1\]"):
        catalog.find("accelerator", "cuda:1")


def test_unknown_names_suggest(plugin_site, error_text):
    plugin_site.install("vendor-good", GOOD, accelerators={"good": "Good"})
    with pytest.raises(accelkit.UnknownNameError) as caught:
        catalog.find("accelerator", "goood")
    assert "'good'" in caught.value.hint
    assert caught.value == error_text
    with pytest.raises(accelkit.UnknownNameError) as caught:
        catalog.find("accelerator", "zzzzzz")
    assert "'zzzzzz'" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(accelkit.UnknownNameError) as caught:
        catalog.find("precision", "bf16-mixd")
    assert "'bf16-mixed'" in caught.value.hint
    assert caught.value == error_text


@pytest.mark.parametrize(
    ("kind", "name", "argument"),
    [
        ("accelerator", "bf16-mixed", "precision='bf16-mixed'"),
        ("strategy", "slurm", "cluster='slurm'"),
        ("precision", "acme_hooks", "hooks=['acme_hooks']"),
    ],
)
def test_the_name_of_another_kind_of_plugin_is_recognised(kind, name, argument, plugin_site, error_text):
    plugin_site.install("vendor-hooks", "class Hooks: ...\n", entry_points="[accelkit.hooks]\nacme_hooks = vendor_hooks:Hooks\n")
    with pytest.raises(accelkit.UnknownNameError) as caught:
        catalog.find(kind, name)
    assert "another kind of plugin" in caught.value.why
    assert argument in caught.value.hint
    assert caught.value == error_text


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (lambda info: (info / "METADATA").unlink(), "METADATA is missing from vendor_good-1.0.dist-info"),
        (lambda info: (info / "entry_points.txt").write_bytes(b"[accelkit.accelerators]\ngood = vendor_good:G\xff\n"), "is not UTF-8"),
        (lambda info: (info / "entry_points.txt").write_text("[accelkit.accelerators]\ngood = not a value\n"), "is malformed"),
        (lambda info: (info / "entry_points.txt").write_text("[accelkit.accelerators]\ngood\n"), "is malformed"),
        (lambda info: (info / "entry_points.txt").write_text("good = accelkit.x:y\n[accelkit.accelerators]"), "cannot be parsed"),
        (
            lambda info: (info / "entry_points.txt").write_text("[accelkit.accelerators]\n\x1b[31mgood = a:B\n"),
            "a name consists of letters",
        ),
    ],
)
def test_broken_metadata_is_one_row_that_says_so(plugin_site, tamper, reason):
    tamper(plugin_site.install("vendor-good", GOOD, accelerators={"good": "Good"}))
    accelkit.refresh()
    found = [row for row in accelkit.plugins() if row.distribution == "vendor-good"]
    assert [row.status for row in found] == ["broken"]
    assert reason in found[0].reason
    assert "pip install --force-reinstall --no-deps vendor-good" in found[0].hint
    assert "\x1b" not in repr(found[0].reason)
    with pytest.raises(accelkit.BrokenPluginError, match=r"vendor-good==1\.0"):
        catalog.find("accelerator", found[0].name)


def test_two_metadata_folders_of_one_distribution_are_refused(plugin_site):
    plugin_site.install("vendor-good", GOOD, accelerators={"good": "Good"}, version="0.9")
    plugin_site.install("vendor-good", GOOD, accelerators={"good": "Good"}, version="1.0")
    (row,) = rows("good")
    assert row.status == "broken"
    assert "vendor_good-0.9.dist-info and vendor_good-1.0.dist-info" in row.reason


def test_listing_imports_no_plugin_and_no_torch(plugin_site):
    plugin_site.install("vendor-good", "raise SystemExit('imported')", accelerators={"good": "Good"})
    code = (
        "import sys, accelkit; from accelkit import Accelerator, Availability; accelkit.plugins();"
        "print([m for m in sys.modules if m in ('torch', 'vendor_good') or m.startswith('accelkit_builtin.')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['accelkit_builtin.known_devices']", "the table of devices, which is no plugin"


def test_torchs_own_backends_are_seen_in_the_same_reading(plugin_site):
    plugin_site.install("vendor-torch", entry_points="[torch.backends]\nacme = vendor_torch:_autoload")
    assert [(b.name, b.plugin) for b in scan().torch_backends] == [("acme", "vendor-torch==1.0")]


@pytest.mark.parametrize(
    ("group", "meant"),
    [
        ("accelkit.accelerator", "accelkit.accelerators"),
        ("accelkit_accelerators", "accelkit.accelerators"),
        ("accelkit.Precisions", "accelkit.precisions"),
        ("accelkit.cluster", "accelkit.clusters"),
        ("accelkit.stratergies", "accelkit.strategies"),
        ("acelkit.hooks", "accelkit.hooks"),
    ],
)
def test_a_group_that_is_nearly_ours_is_a_row(plugin_site, group, meant):
    plugin_site.install("vendor-near", entry_points=f"[{group}]\nnearly = vendor_near:Plugin\n")
    (record,) = [record for record in catalog.plugins() if record.name == "nearly"]
    assert record.status == "broken"
    assert group in record.reason
    assert repr(meant) in record.hint
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        catalog.find(record.kind, "nearly")
    assert caught.value.plugin == "vendor-near==1.0"


def test_groups_of_other_programs_are_not_ours(plugin_site):
    plugin_site.install(
        "vendor-other", entry_points="[accelerate.plugins]\nx = y:z\n[accelkit.conformance]\nx = y:z.toml\n[console_scripts]\na=b:c\n"
    )
    assert [record for record in catalog.plugins() if record.distribution == "vendor-other"] == []
