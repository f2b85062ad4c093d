"""The tables of other libraries' names in the migration guides, made from ``accelkit/peer_names.toml``.

``python tests/docs/peer_name_tables.py`` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

from accelkit.peer_names import Row, peers, rows

DOCS = Path(__file__).parents[2] / "docs"
_BEGIN = "<!-- made by python tests/docs/peer_name_tables.py -->"
_END = "<!-- end of the generated part -->"
_HEADINGS = {"attributes": "attribute or method", "functions": "function or class", "arguments": "argument of the constructor"}


def path_of(peer: str) -> Path:
    """The page that has the tables of this library."""
    return DOCS / peers()[peer].page


def with_tables(page: str, peer: str) -> str:
    """The page with its tables made anew."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    assert after, f"{path_of(peer)} has no place for the tables"
    return f"{before}{_BEGIN}\n\n{_tables(peer)}\n\n{_END}{after}"


def _tables(peer: str) -> str:
    is_in_folder = "/" in peers()[peer].page
    tables = []
    for kind, heading in _HEADINGS.items():
        if found := [row for row in rows() if row.kind == kind and peer in row.peers]:
            tables.append(
                "\n".join([f"| {heading} | in accelkit |", "|---|---|", *(_row(row, is_in_folder=is_in_folder) for row in found)])
            )
    return "\n\n".join(tables)


def _row(row: Row, *, is_in_folder: bool) -> str:
    names = ", ".join(f"`{name}`" for name in row.names)
    return f"| {names} | {row.instead if is_in_folder else row.instead.replace('](../', '](')} |"


if __name__ == "__main__":
    for key in peers():
        path_of(key).write_text(with_tables(path_of(key).read_text("utf-8"), key), "utf-8")
