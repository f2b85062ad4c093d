"""The report as an SVG badge, such as ``accelkit conformance | training certified``."""

from __future__ import annotations

from html import escape
from pathlib import Path

from accelkit.errors import printable
from accelkit_conformance.report import Report
from accelkit_conformance.results import BAD

_LABEL = "accelkit conformance"
_GREEN, _BLUE, _RED, _GREY = "#217a3c", "#2563a8", "#b3261e", "#474c54"
_NARROW, _WIDE = "fijlrt.,:;|!'()[]I ", "mwMW@%"
_PADDING = 7.0

_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="20" role="img" aria-label="{label}: {message}">
 <title>{label}: {message}</title>
 <clipPath id="r"><rect width="{width:g}" height="20" rx="3"/></clipPath>
 <g clip-path="url(#r)">
  <rect width="{left:g}" height="20" fill="{grey}"/>
  <rect x="{left:g}" width="{right:g}" height="20" fill="{colour}"/>
 </g>
 <g fill="#fff" font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="11">
  <text x="{padding:g}" y="14" textLength="{label_width:g}">{label}</text>
  <text x="{message_x:g}" y="14" textLength="{message_width:g}">{message}</text>
 </g>
</svg>
"""


def write(report: Report, path: Path, folder: Path) -> None:
    """Write the badge: red if a test failed, green if the run is certified, and blue if no test failed but the run is not certified."""
    message, colour = _state(report)
    label_width, message_width = _width(_LABEL), _width(message)
    left, right = label_width + 2 * _PADDING, message_width + 2 * _PADDING
    svg = _SVG.format(
        label=_LABEL,
        message=escape(message),
        grey=_GREY,
        colour=colour,
        padding=_PADDING,
        left=left,
        right=right,
        width=left + right,
        label_width=label_width,
        message_width=message_width,
        message_x=left + _PADDING,
    )
    path.write_text(svg, "utf-8")


def _state(report: Report) -> tuple[str, str]:
    failed = sum(report["summary"]["kinds"].get(kind, 0) for kind in BAD)
    if failed:
        return f"{failed} failed", _RED
    if report["certification"]["is_certified"]:
        return printable(f"{report['suite']['profile']} certified"), _GREEN
    return "passing", _BLUE


def _width(text: str) -> float:
    """Return the approximate width of ``text`` in 11-pixel Verdana; ``textLength`` in the SVG enforces it."""
    return round(sum(4.2 if c in _NARROW else 10.3 if c in _WIDE else 7.0 for c in text), 1)
