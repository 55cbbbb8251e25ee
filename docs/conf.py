"""Settings of the documentation's site: Sphinx with MyST for the pages and furo for their looks.

`make docs` builds it into `build/docs`. The site loads nothing from other servers.
`site_pages.py` includes pages from outside this folder (changes, contributing, benchmarks) and adjusts their
links.
"""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "Episodelake"
author = "The Episodelake authors"
copyright = "the Episodelake authors; Apache 2.0"
version = release = installed_version("episodelake")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_pages"]
exclude_patterns = ["**/.ipynb_checkpoints"]
nitpicky = False

# Blocks without a language are plain text.
highlight_language = "text"

# Pages are Markdown; `[text](page.md#heading)` works here and on a Git host, whose anchors these are.
myst_heading_anchors = 4
myst_links_external_new_tab = False

# In docstrings a single backtick marks code; where it is the name of something public, it links there.
default_role = "name"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = "Episodelake"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6a75", "color-brand-content": "#0b6a75"},
    "dark_css_variables": {"color-brand-primary": "#5ac8d0", "color-brand-content": "#5ac8d0"},
}
