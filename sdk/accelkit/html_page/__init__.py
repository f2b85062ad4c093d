"""Self-contained HTML pages, which need no other file and no network access. Their templates extend ``base.html.j2``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jinja2


def render(folder: Path, template: str, **values: Any) -> str:
    """Return the page that a template produces.

    Args:
        folder: The folder of the template.
        template: The name of the template.
        values: The variables of the template. ``markupsafe.Markup`` objects are inserted unchanged; all other values are escaped.
    """
    return _environment(folder).get_template(template).render(**values)


@functools.cache
def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"quantity": _quantity, "duration": _duration, "share": _share}
    return environment


def _quantity(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    if seconds >= 60:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _share(part: float, whole: float) -> str:
    """Return ``part`` as a percentage of ``whole``, such as ``12.50%``, or ``0%`` if ``whole`` is 0."""
    return f"{100 * part / whole:.2f}%" if whole else "0%"
