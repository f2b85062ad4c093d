"""Find and run the C++ compiler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence

INSTALL_A_COMPILER = (
    "install a C++ compiler (apt-get install g++ on Debian and Ubuntu, dnf install gcc-c++ on Fedora, xcode-select --install on macOS), "
    "or set CXX"
)


class BuildError(RuntimeError):
    """A C++ library cannot be compiled or loaded. The message has the reason or the compiler's first errors, and may say what to do."""


def compiler_command() -> tuple[str, ...]:
    """Return the command of the C++ compiler as a tuple.

    The command is the value of CXX, split into words. If CXX is not set, it is the first of c++, g++ and clang++ that is installed.

    Raises:
        BuildError: If CXX cannot be split into words, if CXX names a program that does not exist, or if CXX is not set and none of the
            three compilers is installed.
    """
    chosen = words_of("CXX")
    names = [chosen[0]] if chosen else ["c++", "g++", "clang++"]
    for name in names:
        if shutil.which(name):
            return (name, *chosen[1:])
    why = f"CXX is {names[0]}, which does not exist" if chosen else f"none of {', '.join(names)} is installed"
    raise BuildError(f"no C++ compiler was found: {why}")


def words_of(variable: str) -> list[str]:
    """Split the value of an environment variable into words, as a shell does. Return an empty list if the variable is not set.

    Raises:
        BuildError: If the value cannot be split, because a quotation mark is not closed, or because the value ends in a backslash.
    """
    value = os.environ.get(variable, "")
    try:
        return shlex.split(value)
    except ValueError as error:
        raise BuildError(f"{variable}={value!r} cannot be split into words: {error}") from error


def run_compiler(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines()
        first = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
        raise BuildError("; ".join(lines[first : first + 3]) or f"{command[0]} ended with exit code {result.returncode}")
