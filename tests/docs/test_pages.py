"""Every fenced block of README.md and of the documentation does what it says: each page is run, in a process and a folder of its own."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import preloaded
import pytest
from commands import Shell, check_output, environment
from pages import ROOT, Page, read, tracked_pages

SECONDS = 240  # a page takes a minute or less, but for a machine that does other things too
ACME = """
from accelkit_fake_xpu.accelerator import FakeXPUAccelerator

class AcmeAccelerator(FakeXPUAccelerator):
    "ACME NPU, which is a simulated one here."
"""

# Page, a line of the block, and why it cannot be run here: five at most.
EXCEPTED = {
    ("docs/clusters.md", "import ray"): "needs Ray; tests/cluster/test_ray.py runs it with real actors",
    ("docs/guides/several-devices.md", "# ray_job.py"): "the same",
    ("docs/precisions.md", "from transformer_engine.common.recipe import DelayedScaling"): "needs an NVIDIA GPU and its package",
    ("docs/xla.md", 'rt = accelkit.Runtime("xla", precision="bf16-mixed", seed=0)'): "needs torch_xla; tests/xla run such loops",
    ("docs/xla.md", "$ PJRT_DEVICE=CPU python train.py"): "needs torch_xla, likewise",
}

QUICK = {
    "docs/checkpoints.md",
    "docs/data.md",
    "docs/explanation/life-of-a-step.md",
    "docs/explanation/selection.md",
    "docs/vendors/hooks.md",
}
"""Pages that take seconds and need nothing besides torch: they belong to `make test`."""


def excepted_lines(path: str, page: Page) -> list[int]:
    return [step.line for step in page.blocks for where, line in EXCEPTED if where == path and line in step.text]


def test_few_blocks_are_excepted_and_each_is_there():
    assert len(EXCEPTED) <= 5
    for path, line in EXCEPTED:
        found = [step for step in read(ROOT / path).blocks if line in step.text]
        assert len(found) == 1, f"{path} has {len(found)} blocks with {line!r}"


@pytest.mark.parametrize("path", tracked_pages())
def test_a_page_that_runs_accelkit_new_installs_what_it_needs(path):
    before, command, _ = (ROOT / path).read_text("utf-8").partition("\n$ accelkit new")
    assert not command or "$ pip install 'accelkit[template" in before


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("path", [pytest.param(path, marks=pytest.mark.smoke) if path in QUICK else path for path in tracked_pages()])
def test_page(path, tmp_path, plugin_site):
    page = read(ROOT / path)
    if not page.blocks:
        return
    plugin_site.install("vendor-acme-plugin", ACME, accelerators={"acme": "AcmeAccelerator"})
    folder = tmp_path / "page"
    (folder / "home").mkdir(parents=True)
    command = ["python", str(Path(__file__).with_name("run_page.py")), str(ROOT / path), str(folder)]
    command += [str(line) for line in excepted_lines(path, page)]
    result = subprocess.run(
        command,
        env=environment(folder, preloaded.programs()) | {"STAND_IN": str(plugin_site.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert result.returncode == 0, result.stdout[-8000:]


@pytest.mark.parametrize("path", tracked_pages())
def test_what_a_page_says_is_tested_elsewhere_is(path):
    for file, name in read(ROOT / path).tested_by:
        functions = {node.name for node in ast.parse((ROOT / file).read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{path} names {file}::{name}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nassert 1 == 2\n```\n", "AssertionError"),
        ("```console\n$ false\n```\n", "ended with 1"),
        ("```console\n$ echo one\ntwo\n```\n", "shows 'two'"),
        ("```console\n$ make nothing-of-the-kind\n```\n", "nothing-of-the-kind"),
        ("```console\n$ pip install 'accelkit[nothing]'\n```\n", "has no extra nothing"),
        ("```console\n$ pip install nothing-of-the-kind\n```\n", "nothing here is known of the package"),
        ("```toml\n[a\n```\n", "TOMLDecodeError"),
        ("```json\n{\n```\n", "JSONDecodeError"),
        ("```yaml\na: [\n```\n", "yaml"),
        ("```ini\na\n```\n", "MissingSectionHeaderError"),
        ("```bash\nif\n```\n", "syntax error"),
        ("```pycon\n>>> 1 + 1\n3\n```\n", "what is printed is not what is shown"),
        ("```\nwhat\n```\n", "no language"),
        ("```python\n# wrong.py\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```python\nnever\n", "has no end"),
    ],
)
def test_what_is_wrong_is_found(text, complaint, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text)
    env = environment(tmp_path, preloaded.programs())
    run = ["python", str(Path(__file__).with_name("run_page.py")), str(page), str(tmp_path)]
    result = subprocess.run(run, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert result.returncode != 0
    assert complaint in result.stdout


def test_what_lasts_from_one_block_to_the_next(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- setup: python\nnumber = 1\n-->\n```python\nnumber += 1\n```\n"
        "```console\n$ mkdir below && cd below\n$ export NUMBER=2\n```\n"
        "```console\n$ echo $NUMBER in $(basename $PWD)\n2 in below\n```\n"
        "```python\n# two.py\nprint(2)\n```\n```console\n$ python ../two.py    # a comment\n```\n```python\nassert number == 2\n```\n"
        "<!-- may exit 3: bash -c -->\n```console\n$ bash -c 'exit 3'\n```\n"
    )
    env = environment(tmp_path, preloaded.programs())
    run = ["python", str(Path(__file__).with_name("run_page.py")), str(page), str(tmp_path)]
    result = subprocess.run(run, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_digits_may_differ_and_dots_stand_for_anything():
    check_output("time", "took 12 s\n...\nended at ...:00\n", "it took 3 s\nand more\nended at noon:00\n")
    with pytest.raises(AssertionError, match="shows 'b'"):
        check_output("order", "a\nb\n", "b\na\n")


def test_the_first_of_two_commands_in_a_line_must_work(tmp_path):
    with pytest.raises(AssertionError, match="ended with 1"):
        Shell(tmp_path, {}).run("cd nosuchfolder && accelkit list")


def test_a_launchers_program_is_run(tmp_path):
    assert Shell(tmp_path, {}).run("srun --nodes 2 python -c 'print(6 * 7)'") == "42\n"
    with pytest.raises(AssertionError, match="starts no program"):
        Shell(tmp_path, {}).run("srun --nodes 2 hostname")
