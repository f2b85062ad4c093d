"""The README as a package index shows it: links into the repository lead to where this version's files are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Called by hatchling, for sdists, wheels and editable installations."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        files = f"{metadata['urls']['Source']}/blob/v{metadata['version']}"
        metadata["readme"] = {"content-type": "text/markdown", "text": RELATIVE_LINK.sub(rf"]({files}/\1)", text)}
