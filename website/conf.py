"""Settings of Sphinx; `python -m website` writes the pages and starts it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rollax
from website.docstrings import source_link

project = "rollax"
author = "the authors of rollax"
release = version = rollax.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.linkcode",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "website.docstrings",
    "website.mathml",
]
nitpicky = True
# Types of other libraries and of internal modules have no page.
nitpick_ignore_regex = [("py:.*", ".*")]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # an override without words of its own is not listed again
maximum_signature_line_length = 88
linkcode_resolve = source_link
napoleon_use_rtype = False
napoleon_preprocess_types = False
add_module_names = False
python_use_unqualified_type_names = True
default_role = None
copybutton_exclude = ".linenos, .gp, .go"

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "rollax"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/rollax.svg"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
