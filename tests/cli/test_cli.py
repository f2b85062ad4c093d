"""The command line, as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from accelkit.cli import main

pytestmark = pytest.mark.usefixtures("forked_interpreters")

CLASS = """
print("noise on stdout")
import sys; sys.stderr.write("noise on stderr")
from accelkit import Accelerator, Availability

class Some(Accelerator):
    "Some device."
    device_type = "cpu"
    is_simulated = True

    @classmethod
    def probe(cls):
        print("more noise")
        return {answer}

    def doctor_checks(self):
        return {{"firmware": Availability.usable("version 4")}}
"""


def run(*arguments, **environ):
    command = [sys.executable, "-m", "accelkit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environ)


def run_json(*arguments, code=0, **environ):
    result = run(*arguments, "--json", **environ)
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def some(plugin_site):
    def install(answer="Availability.usable('2 boards')", name="some"):
        plugin_site.install(f"vendor-{name}", CLASS.format(answer=answer), accelerators={name: "Some"}, summary="Made by a vendor")

    return install


def test_list_shows_every_plugin_in_one_line(some, error_text):
    some()
    result = run("list")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["NAME", "KIND", "PLUGIN", "STATUS", "REASON", "WHAT", "TO", "DO", "DESCRIPTION"]
    row = next(line for line in lines if line.startswith("some "))
    assert "vendor-some==1.0" in row
    assert "accelkit doctor some" in row
    assert "Made by a vendor" in row
    assert "\x1b" not in result.stdout
    assert "--all" in result.stderr
    assert result.stderr == error_text
    assert "torch_npu" in run("list", "--all").stdout


def test_list_json_and_kinds():
    report = run_json("list")
    assert report["schema"] == "accelkit.list/1"
    row = next(row for row in report["plugins"] if row["name"] == "cpu")
    assert (row["status"], row["plugin"], row["qualified_name"], row["is_builtin"]) == (
        "available",
        "accelkit==0.1.0",
        "accelkit:cpu",
        True,
    )
    assert {row["kind"] for row in run_json("list", "--kind", "precision")["plugins"]} == {"precision"}
    assert run("list", "--kind", "nope").returncode == 2


def test_what_was_asked_is_remembered(some):
    some()
    before = next(row for row in run_json("list")["plugins"] if row["name"] == "some")
    assert before["reason"] == "not probed yet"
    run("doctor", "some")
    after = next(row for row in run_json("list")["plugins"] if row["name"] == "some")
    assert (after["status"], after["reason"]) == ("available", "2 boards")


def test_whatever_a_plugin_prints_is_kept_out(some):
    some()
    for command in (["why", "some"], ["doctor", "some"], ["info", "some"], ["probe", "some"], ["list"], ["env"]):
        result = run(*command)
        assert result.returncode == 0, result.stderr
        assert "noise" not in result.stdout + result.stderr


def test_doctor_finds_what_is_broken_and_only_that(some, error_text):
    some("1 / 0", name="bad")
    some("Availability.absent('no board', 'insert one')", name="away")
    report = run_json("doctor", code=1)
    assert report["schema"] == "accelkit.doctor/1"
    assert report["findings"] == ["vendor-bad:bad"]
    rows = {row["name"]: row for row in report["plugins"]}
    assert "ZeroDivisionError" in rows["bad"]["reason"]
    assert "ZeroDivisionError" in rows["bad"]["traceback"]
    assert (rows["away"]["status"], rows["away"]["hint"]) == ("unavailable", "insert one")
    assert all(check["status"] == "usable" for check in report["checks"].values())
    text = run("doctor", "bad", "--verbose")
    assert "Traceback" in text.stderr
    assert "vendor-bad:bad" in text.stderr.splitlines()[-1]
    assert text.stderr.splitlines()[-1] == error_text


def test_doctor_finds_mistakes_in_a_class_that_works_otherwise(plugin_site):
    source = "from accelkit import Precision\nclass Half(Precision):\n    def convert_module(self, module):\n        module.half()\n"
    plugin_site.install("vendor-half", source, entry_points="[accelkit.precisions]\nhalf = vendor_half:Half\n")
    report = run_json("doctor", "half", code=1)
    assert report["findings"] == ["half: Half.convert_module returns None"]
    (row,) = report["plugins"]
    assert row["status"] == "available"
    assert [mistake["rule"] for mistake in row["mistakes"]] == ["results"], "a missing docstring does not concern users"
    assert row["mistakes"][0]["hint"] == "return the module in every case"


HOOKS = """
from accelkit import Availability, hookimpl

class Good:
    "Checks of a licence."
    @hookimpl
    def doctor_checks(self):
        return {"licence": Availability.usable("valid until May"), "server": Availability.broken("no route", "start the VPN")}

class Quiet:
    "Has no checks."
    @hookimpl
    def checkpoint_saved(self, path): ...
"""


def test_doctor_calls_the_checks_of_hook_plugins(plugin_site):
    plugin_site.install("vendor-hooks", HOOKS, entry_points="[accelkit.hooks]\ngood = vendor_hooks:Good\nquiet = vendor_hooks:Quiet\n")
    report = run_json("doctor", "good", code=1)
    assert report["findings"] == ["good: server"]
    assert report["plugins"][0]["status"] == "available"
    assert report["plugins"][0]["checks"] == {
        "licence": {"status": "usable", "reason": "valid until May", "hint": ""},
        "server": {"status": "broken", "reason": "no route", "hint": "start the VPN"},
    }
    assert "start the VPN" in run("doctor", "good").stdout
    assert run_json("doctor", "quiet")["plugins"][0]["checks"] == {}


FAILING_CHECKS = {
    "hangs": ("import time; time.sleep(3600)", "it exceeded the time limit of 10 s in doctor_checks()"),
    "raises": ("raise LookupError('no licence')", "LookupError: no licence"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "it crashed with SIGSEGV in doctor_checks()"),
    "ends": ("import os; os._exit(0)", "it ended the process with exit code 0 in doctor_checks()"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "bool": ("return True", "doctor_checks of bool returned True: it must return a mapping from check names to Availability objects"),
    "bools": ("return {'licence': True}", "doctor_checks of bools returned {'licence': True}"),
}


def test_doctor_goes_on_if_the_checks_of_a_hook_plugin_fail(plugin_site):
    plugin_site.install("vendor-hooks", HOOKS, entry_points="[accelkit.hooks]\ngood = vendor_hooks:Good\n")
    for name, (body, _) in FAILING_CHECKS.items():
        source = f'from accelkit import hookimpl\nclass Bad:\n    "Fails."\n    @hookimpl\n    def doctor_checks(self):\n        {body}\n'
        plugin_site.install(f"vendor-{name}", source, entry_points=f"[accelkit.hooks]\n{name} = vendor_{name}:Bad\n")
    report = run_json("doctor", code=1, ACCELKIT_LOAD_TIMEOUT="10")
    rows = {row["name"]: row for row in report["plugins"]}
    assert rows["good"]["checks"]["licence"]["reason"] == "valid until May"
    for name, (_, reason) in FAILING_CHECKS.items():
        assert f"{name}: doctor_checks" in report["findings"]
        assert reason in rows[name]["checks"]["doctor_checks"]["reason"]
        assert rows[name]["checks"]["doctor_checks"]["hint"]
        assert (rows[name]["plugin"], rows[name]["status"]) == (f"vendor-{name}==1.0", "available"), "the plugin itself can be used"


def test_doctor_on_a_slow_machine_does_not_advise_to_uninstall():
    check = run_json("doctor", "cpu", code=1, ACCELKIT_START_TIMEOUT="0.05")["checks"]["torch import"]
    assert "0.05 s" in check["reason"]
    assert "ACCELKIT_START_TIMEOUT" in check["hint"]
    assert "uninstall" not in check["hint"], "nothing is installed that torch would import"


def test_doctor_of_one_by_name(some):
    some()
    result = run("doctor", "some")
    assert result.returncode == 0
    assert "firmware" in result.stdout
    assert "version 4" in result.stdout
    assert run("doctor", "cuda").returncode == 1, "asked for by name, an absent device is a finding"
    assert run("doctor", "nobody").returncode == 2


def test_doctor_finds_an_allow_list_that_names_strangers():
    report = run_json("doctor", code=1, ACCELKIT_PLUGINS="vendor-of-nobody")
    assert report["findings"] == ["allow list"]
    assert "vendor-of-nobody" in report["checks"]["allow list"]["reason"]


def test_why_explains(some, error_text):
    some()
    report = run_json("why")
    assert (report["schema"], report["requested"], report["chosen"]) == ("accelkit.why/1", "auto", "cpu")
    reason = {c["name"]: c["reason"] for c in report["candidates"]}["some"]
    assert "simulated" in reason
    assert reason == error_text
    text = run("why", "some").stdout
    assert all(word in text.splitlines()[0] for word in ("some", "vendor-some==1.0", "argument"))
    assert text.splitlines()[0] == error_text
    assert run_json("why", ACCELKIT_ACCELERATOR="some")["source"] == "ACCELKIT_ACCELERATOR"


def test_why_asks_again_what_worked_before(some, tmp_path):
    driver = tmp_path / "driver"
    driver.touch()
    some(f"Availability.usable() if __import__('os').path.exists({str(driver)!r}) else Availability.absent('the driver is gone')")
    assert run("why", "some").returncode == 0
    driver.unlink()
    refused = run("why", "some")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "the driver is gone" in refused.stderr


def test_a_device_type_of_torchs_is_shown_as_it_is():
    report = run_json("info", "torch:cpu")
    assert (report["name"], report["status"], report["verdict"]["device_count"]) == ("torch:cpu", "available", 1)
    assert run_json("info", "torch:nosuchthing")["status"] == "unavailable"
    assert run_json("doctor", "torch:cpu")["findings"] == []
    assert run_json("doctor", "torch:nosuchthing", code=1)["findings"] == ["accelkit:torch:nosuchthing"]


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["why", "cudda"], 2, "UnknownNameError"),
        (["why", "cuda"], 4, "UnavailableError"),
        (["probe", "mps"], 4, "UnavailableError"),
        (["probe", "torch:nosuchthing"], 4, "UnavailableError"),
        (["info", "nobody"], 2, "UnknownNameError"),
        (["why", "torch:"], 2, "UsageError"),
        (["why", "ipu"], 4, "UnavailableError"),
        (["why", "torch:nosuchthing"], 4, "UnavailableError"),
    ],
)
def test_errors_have_a_text_a_code_and_json(arguments, code, error, error_text):
    result = run(*arguments)
    assert result.returncode == code
    assert result.stdout == ""
    assert result.stderr.startswith("accelkit: ")
    assert arguments[1].removeprefix("torch:") in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr == error_text
    report = run_json(*arguments, code=code)
    assert (report["schema"], report["error"], report["exit_code"]) == ("accelkit.error/1", error, code)
    assert report["what"]
    assert report["hint"]


def test_a_broken_plugin_exits_3(some):
    some("1 / 0", name="bad")
    assert run("probe", "bad").returncode == 3
    assert run("why", "bad").returncode == 3


def test_an_empty_allow_list_is_a_usage_error(error_text):
    for command in ("list", "doctor", "why", "env"):
        result = run(command, ACCELKIT_PLUGINS="")
        assert result.returncode == 2
        assert "ACCELKIT_PLUGINS" in result.stderr
        assert result.stderr == error_text


def test_probe_computes(error_text):
    text = run("probe", "cpu").stdout
    assert "[0, 1, 2, 3] + 1" in text
    assert text == error_text
    report = run_json("probe", "torch:cpu")
    assert (report["schema"], report["name"], report["status"]) == ("accelkit.probe/1", "torch:cpu", "usable")


def test_info_says_which_precisions_a_device_can_do(some):
    report = run_json("info", "cpu")
    assert report["precisions"] == {
        "16-mixed": "native",
        "16-true": "emulated",
        "32-true": "native",
        "64-true": "native",
        "bf16-mixed": "native",
        "bf16-true": "emulated",
        "bitsandbytes-4bit": "emulated",
        "bitsandbytes-8bit": "emulated",
        "fp8": "emulated",
        "transformer-engine": "none",
        "transformer-engine-float16": "none",
    }
    assert "bf16-true emulated" in run("info", "cpu").stdout
    assert run_json("info", "bf16-mixed")["precisions"] == {}


def test_info(some):
    some()
    text = run("info", "some").stdout
    for part in ("vendor-some==1.0", "vendor_some:Some", "Made by a vendor", "2 boards", "simulated     yes", "'vendor-some:some'"):
        assert part in text
    report = run_json("info", "bf16-mixed")
    assert (report["kind"], report["verdict"]["status"]) == ("precision", "usable")
    assert run_json("info", "vendor-some:some")["name"] == "some"


def test_env_can_be_pasted_and_tells_no_secrets(some):
    some()
    text = run("env", ACCELKIT_AUTO_ORDER="cpu", MY_SECRET_TOKEN="hunter2").stdout
    assert text.startswith("```\n")
    assert text.endswith("```\n")
    assert "ACCELKIT_AUTO_ORDER: cpu" in text
    assert "torch: " in text
    assert "accelerator some (vendor-some==1.0): available" in text
    assert "hunter2" not in text
    assert run_json("env")["versions"]["accelkit"] == "0.1.0"


def test_help_version_and_completion():
    assert run("--version").stdout == "accelkit, version 0.1.0\n"
    text = run("--help").stdout
    assert "doctor Test every plugin, and check the installation." in " ".join(text.split())
    assert run("nonsense").returncode == 2
    completed = subprocess.run(
        [sys.executable, "-c", "from accelkit.cli import main; main(prog_name='accelkit')"],
        env=os.environ | {"_ACCELKIT_COMPLETE": "bash_complete", "COMP_WORDS": "accelkit why cu", "COMP_CWORD": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cuda" in completed.stdout
    with main.make_context("accelkit", ["--help"], resilient_parsing=True) as context:
        assert {"list", "why", "doctor"} <= {item.value for item in main.shell_complete(context, "")}


def on_terminal(**environ):
    """What ``accelkit list`` writes to a real terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "accelkit", "list"], stdout=follower, stderr=subprocess.DEVNULL, env=os.environ | environ
    )
    os.close(follower)
    text = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # Linux's way of saying that the other side is closed
            break
        if not chunk:
            break
        text += chunk
    assert process.wait() == 0
    os.close(leader)
    return text.decode()


def test_a_terminal_gets_colour_unless_it_does_not_want_it():
    terminal = {"TERM": "xterm-256color", "COLUMNS": "200"}
    assert "\x1b[32mavailable" in on_terminal(**terminal)
    assert "\x1b[32m" not in on_terminal(NO_COLOR="1", **terminal)


def test_a_narrow_terminal_gets_no_descriptions():
    wide, narrow = (on_terminal(TERM="xterm-256color", COLUMNS=columns) for columns in ("200", "100"))
    assert "DESCRIPTION" in wide
    assert "STATUS" in narrow
    assert "DESCRIPTION" not in narrow


def test_a_closed_pipe_is_no_error():
    result = subprocess.run(
        f"{sys.executable} -m accelkit list --all | head -1", shell=True, capture_output=True, text=True, check=True, env=os.environ
    )
    assert "Traceback" not in result.stderr
