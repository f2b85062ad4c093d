"""Puts the C++ library into the wheel, compiled for the torch of the environment in which the wheel is built.

HATCH_BUILD_HOOK_ENABLE_CUSTOM=true enables this step. Otherwise, the wheel has only the sources, which are compiled on first use.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LibraryHook(BuildHookInterface):
    """Called by hatchling. The library does not use Python's C interface, so the wheel is for every Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library. Other compiled libraries of the same sources in ``prebuilt`` are put into the wheel as well."""
        sys.path.insert(0, str(Path(self.root) / "src"))
        from {{ cookiecutter.__package }}.build import LIBRARY

        LIBRARY.prebuild()
        build_data["artifacts"].append("src/{{ cookiecutter.__package }}/prebuilt/*.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{re.sub('[-.]', '_', sysconfig.get_platform())}"
