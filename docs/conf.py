"""Sphinx: Markdown through MyST, the furo theme. Build: sphinx-build -W -b html docs docs/_build"""

import re
from pathlib import Path

_init = (Path(__file__).parent.parent / "src" / "octavo" / "__init__.py").read_text()
_version = re.search(r'__version__ = "(.+?)"', _init)
assert _version is not None

project = "Octavo"
author = "The Octavo developers"
copyright = "2026, The Octavo developers"
version = release = _version[1]

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"Octavo {version}"
exclude_patterns = ["_build"]
nitpicky = True
