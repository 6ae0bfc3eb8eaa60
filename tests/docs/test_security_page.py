"""S23: the security page lists every route, environment variable and file the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


def sources() -> list[Path]:
    return sorted((ROOT / "src" / "octavo").rglob("*.py"))


def test_every_route_is_listed_and_no_other() -> None:
    from octavo.server.routes import ROUTES

    key_needed = {(r.method, r.path.replace("{model}", "NAME")): "no" if r.open else "yes" for r in ROUTES}
    listed = {(m, p): key for m, p, key in re.findall(r"\| `(GET|POST) (/\S*)` \| (yes|no) \|", PAGE)}
    assert listed == key_needed


def environment_variables() -> set[str]:
    """Names read through os.environ or os.getenv, as literals or module constants."""
    found: set[str] = set()
    for path in sources():
        tree = ast.parse(path.read_text())
        constants = {
            target.id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            key: ast.expr | None = None
            if isinstance(node, ast.Call) and re.search("environ|getenv", ast.unparse(node.func)) and node.args:
                key = node.args[0]
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("os.environ"):
                key = node.slice
            if isinstance(key, ast.Name):
                key = ast.Constant(constants.get(key.id))
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                found.add(key.value)
    return found


def test_every_environment_variable_is_listed() -> None:
    found = environment_variables()
    assert {"OCTAVO_DEBUG", "XDG_CACHE_HOME"} <= found  # the scan sees something
    table = PAGE[PAGE.index("## Environment variables") :].split("\n## ")[0]
    listed = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", "\n".join(x for x in table.splitlines() if x.startswith("| `"))))
    assert found - listed == set(), "read by the code, not on the page"
    assert listed - found == set(), "on the page, not read by the code"
