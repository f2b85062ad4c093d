"""How Sphinx builds the site: ``make docs``. Nothing is fetched."""

from __future__ import annotations

import logging
from typing import Any

import accelkit

project = "accelkit"
author = "the accelkit authors"
copyright = "the accelkit authors, Apache-2.0"
version = release = accelkit.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"accelkit {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
pygments_style, pygments_dark_style = "tango", "monokai"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
napoleon_use_ivar = True  # an "Attributes:" section names what the members would name again
python_use_unqualified_type_names = True

nitpicky = True
# Names of other projects, whose documentation is not fetched: only ours must lead somewhere.
nitpick_ignore_regex = [("py:.*", r"(?!accelkit).*"), ("py:.*", r"accelkit\.[\w.]+\.[TR]")]  # T, R: type variables


def setup(app: Any) -> dict[str, bool]:
    """A section may have no pages yet; Sphinx gives that warning no type by which ``suppress_warnings`` could name it."""
    logging.getLogger("sphinx.sphinx.directives.other").addFilter(lambda record: getattr(record, "subtype", "") != "empty_glob")
    return {"parallel_read_safe": True}
