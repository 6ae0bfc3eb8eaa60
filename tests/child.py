"""The environment of a Python process that a test starts."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def child_env(*, tests: bool = False, **variables: str) -> dict[str, str]:
    """Makes the child import the octavo of this process: a checkout's `src` where the module was built there, else the
    installed package, which the sources (they have no built module beside them) must not hide. With `tests`, this
    package too."""
    file = importlib.import_module("octavo").__file__
    assert file is not None
    paths = [str(Path(file).resolve().parents[1]), *([str(ROOT)] if tests else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
