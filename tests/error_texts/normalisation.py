"""What differs between machines and runs is replaced by a placeholder before a text is compared."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONED = ("accelerate", "accelkit", "accelkit-fake-xpu", "deepspeed", "lightning", "pytest", "torch", "torchao")

PATTERNS = (
    (r"\b\d{8}T\d{6}-[\w.-]+-\d+\b", "<run>"),
    (r"\b(?=[0-9a-f]*[1-9a-f])[0-9a-f]{12}\b", "<digest>"),
    (r"\[Errno \d+\]", "[Errno <number>]"),
    (r"\bpython3(\.\d+)?\b", "python<version>"),
    (r"(?i)\b(python) 3\.\d+(\.\d+)?\b", r"\1 <version>"),
    (r"\b(pid|PID|process) \d{2,}\b", r"\1 <pid>"),
    (r"\b(127\.0\.0\.1|localhost|\[::1?\]|port)([: ])\d{4,5}\b", r"\1\2<port>"),
    (r"\b0x[0-9a-f]{6,}\b", "<address>"),
    (r"\bfor send operation\b", "for recv operation"),  # which of the two gloo waits for is a matter of time
    (r'(File ".*?", line )\d+', r"\1<line>"),
    (r"\b\d+\.\d+( ?s\b| seconds?\b)", r"<time>\1"),
)


def normalised(text: str, folders: Mapping[str, str]) -> str:
    """``text`` without this machine's paths, versions, ports, process ids and addresses. ``folders`` maps more paths to placeholders."""
    known = {sys.executable: "<python>", sys.prefix: "<venv>", sys.base_prefix: "<base-python>", str(ROOT): "<repository>"}
    for path, placeholder in sorted({**folders, **known}.items(), key=lambda item: -len(item[0])):
        text = re.sub(rf"(/private)?{re.escape(path)}(?![\w.-])", placeholder, text)
    text = re.sub(rf"(/private)?{re.escape(tempfile.gettempdir())}/[\w.-]+", "<tmp>", text)
    for name in VERSIONED:
        text = _without_version(text, name)
    for pattern, replacement in PATTERNS:
        text = re.sub(pattern, replacement, text)
    text = text.replace(socket.gethostname(), "<host>").replace(platform.python_version(), "<python-version>")
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _without_version(text: str, name: str) -> str:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return text
    return re.sub(rf"\b({name}(?:==| |-)){re.escape(version)}(?![\w.])", r"\1<version>", text)
