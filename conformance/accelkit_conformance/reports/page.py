"""Insert generated text into a Markdown page between two markers (HTML comments). The rest of the page is left unchanged."""

from __future__ import annotations

from pathlib import Path

from accelkit import UsageError
from accelkit.atomic_file import atomic_file


def begin(what: str) -> str:
    """Return the marker before the output of ``accelkit conformance <what>``."""
    return f"<!-- accelkit conformance {what} -->\n"


def end(what: str) -> str:
    return f"<!-- end of the {what} -->"


def put(made: str, path: Path, what: str) -> None:
    """Replace the text between the two markers of a page.

    Args:
        made: The new text.
        path: The page.
        what: The subcommand that generated the new text, such as ``matrix``. The markers contain its name.

    Raises:
        UsageError: If a marker is missing or occurs more than once, or if the end marker comes before the start marker.
    """
    text, first, last = path.read_text("utf-8"), begin(what), end(what)
    before, _, rest = text.partition(first)
    _, found, after = rest.partition(last)
    if not found or (text.count(first), text.count(last)) != (1, 1):
        raise UsageError(
            f"{path} does not have the markers for the {what}",
            why="each of the two markers must occur once, in this order",
            hint=f"add the lines {begin(what).strip()} and {end(what)} to the page",
        )
    content = f"{before}{first}{made}{last}{after}".encode("utf-8", "backslashreplace")  # encode before the page is opened for writing
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)
