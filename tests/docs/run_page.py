"""Runs a page: ``python run_page.py PAGE FOLDER``, in a process of its own and in that folder.

Python shares one namespace, commands share one shell. The traceback of what fails shows the page's own lines.
"""

from __future__ import annotations

import configparser
import doctest
import json
import os
import subprocess
import sys
import time
import tomllib
import types
from collections.abc import Callable
from pathlib import Path

from commands import Shell
from pages import DIRECTIVE, Page, Step, read

from accelkit import thread_shutdown


class Runner:
    """A page, step by step."""

    def __init__(self, page: Page, folder: Path, excepted: frozenset[int]) -> None:
        self.page, self.folder, self.excepted = page, folder, excepted
        self.shell = Shell(folder, page.may_exit)
        self.commands = "".join(step.text for step in page.steps if step.language in ("console", "bash"))
        self.module = sys.modules["__main__"] = types.ModuleType("__main__")

    def run(self, step: Step) -> None:
        if step.file:
            path = self.folder / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, "utf-8")
        if step.language.startswith(DIRECTIVE):
            return
        language: Callable[[Step], None] | None = getattr(self, f"run_{step.language}", None)
        assert language is not None, f"{step.language or 'no language'}: write python, console, toml, ... or text for what is no program"
        language(step)

    def run_python(self, step: Step) -> None:
        code = compile("\n" * (step.line - 1) + step.text, str(self.page.path), "exec")
        if step.line in self.excepted:
            return
        if not step.file:
            exec(code, vars(self.module))
        elif not step.is_hidden and step.file not in self.commands:
            self.shell.bash(f"python {step.file}")

    def run_pycon(self, step: Step) -> None:
        test = doctest.DocTestParser().get_doctest(step.text, vars(self.module), self.page.path.name, str(self.page.path), step.line - 1)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        runner.run(test, clear_globs=False)
        assert not runner.failures, "what is printed is not what is shown"
        vars(self.module).update(test.globs)

    def run_console(self, step: Step) -> None:
        assert step.text.startswith("$ "), "a command begins with '$ '"
        if step.line not in self.excepted:
            self.shell.run_block(step.text)

    def run_bash(self, step: Step) -> None:
        """Set-up is run. What readers see is a job script: whether bash can read it."""
        if step.is_hidden:
            self.shell.bash(step.text)
        else:
            subprocess.run(["bash", "-n"], input=step.text, text=True, check=True)

    def run_toml(self, step: Step) -> None:
        tomllib.loads(step.text)

    def run_json(self, step: Step) -> None:
        json.loads(step.text)

    def run_yaml(self, step: Step) -> None:
        import yaml

        list(yaml.safe_load_all(step.text))

    def run_ini(self, step: Step) -> None:
        configparser.ConfigParser().read_string(step.text)

    def run_cpp(self, step: Step) -> None:
        """C++ is compiled by the tests that the page names."""
        assert self.page.tested_by, "name the test that compiles this"

    def run_text(self, step: Step) -> None:
        """No program: a drawing, or what something printed."""


def main(path: str, folder: str, *excepted: str) -> None:
    os.chdir(folder)
    thread_shutdown.wait_for_threads_at_exit()  # as after every use of a Runtime; a page need not make one
    sys.argv = ["page"]
    start = time.monotonic()
    runner = Runner(read(Path(path)), Path(folder), frozenset(map(int, excepted)))
    for step in runner.page.steps:
        print(
            f"{time.monotonic() - start:.0f} s: {path}:{step.line}: {'set-up, ' * step.is_hidden}{step.language}",
            file=sys.stderr,
            flush=True,
        )
        runner.run(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
