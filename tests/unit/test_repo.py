"""Promises about the repository itself: what code may not do (S01, S02), one version, light imports, the wheel."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "octavo").rglob("*.py"))
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "pickle.load",
    "pickle.loads",
    "marshal.load",
    "marshal.loads",
    "yaml.load",
    "torch.load",
    "os.system",
}
FORBIDDEN_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "torch", "ray"}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in SOURCES:
        yield path.relative_to(ROOT), ast.parse(path.read_text())


def test_no_pickle_no_eval() -> None:
    """S01: nothing that a socket, a file or a request holds can become code."""
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in FORBIDDEN_CALLS or name.endswith((".recv_pyobj", ".send_pyobj")):
                    found.append(f"{path}:{node.lineno} {name}")
                if any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords):
                    found.append(f"{path}:{node.lineno} shell=True")
                if any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords):
                    found.append(f"{path}:{node.lineno} allow_pickle")
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path}:{node.lineno} {n}" for n in names if n.split(".")[0] in FORBIDDEN_MODULES]
    assert found == []


def test_readmes_tree_has_every_package() -> None:
    """In one order with the layers that imports go down."""
    listed = re.search(r"^src/octavo/ (.*?):", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    names = re.findall(r"\w+", listed[1])
    assert sorted(names) == sorted(path.parent.name for path in (ROOT / "src" / "octavo").glob("*/__init__.py"))
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [re.findall(r"octavo\.(\w+)", row) for row in contract["layers"]]
    floors = {name: floor for floor, row in enumerate(layers) for name in row}
    assert [floors[name] for name in names] == sorted(floors[name] for name in names)


def test_the_scan_sees_what_it_forbids() -> None:
    assert any("json" in path.read_text() for path in SOURCES)
    assert len(SOURCES) > 60


def test_safety_is_not_an_assert() -> None:
    """S02: asserts are for our bugs. Where input of users arrives (server, readers, intake, flags) there are next to
    none, and no assert has a message for users."""
    watched = ("server", "weights", "cli", "text")
    for path, tree in trees():
        asserts = [n for n in ast.walk(tree) if isinstance(n, ast.Assert)]
        if path.parts[2] in watched:
            assert len(asserts) <= 4, f"{path}: {len(asserts)} asserts where users' input arrives"
        for node in asserts:
            assert (
                not isinstance(node.msg, ast.JoinedStr)
                or "bug" in ast.unparse(node.msg).lower()
                or path.parts[2] not in watched
            ), f"{path}:{node.lineno}: a message for users belongs into a typed error"


def test_files_hold_one_idea() -> None:
    """A smell, not a gate, up to a point: no file of the package has more than 700 lines."""
    assert {p.name: n for p in SOURCES if (n := len(p.read_text().splitlines())) > 700} == {}


def test_one_source_of_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["scikit-build"]["metadata"]["version"]["input"] == "src/octavo/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", octavo.__version__)
    pattern = re.compile(rf"[\"'v]{re.escape(octavo.__version__)}[\"']")
    hits = [p for p in [*SOURCES, ROOT / "CMakeLists.txt", ROOT / "docs" / "conf.py"] if pattern.search(p.read_text())]
    assert [p.name for p in hits] == ["__init__.py"]


def test_exports_exist() -> None:
    for name in octavo.__all__:
        assert getattr(octavo, name) is not None
    with pytest.raises(AttributeError):
        octavo.nothing  # noqa: B018


@pytest.mark.parametrize("module", ["octavo.llm", "octavo.server.run", "octavo.engine.core", "octavo.sched.scheduler"])
def test_the_brain_loads_neither_numpy_nor_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'numpy', 'torch', 'ml_dtypes'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_what_a_package_needs_is_there() -> None:
    package = ROOT / "src" / "octavo"
    for name in ("py.typed", "weights/catalogue.toml", "server/static/index.html", "_native.pyi"):
        assert (package / name).exists(), name
    for name in ("LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", ".editorconfig"):
        assert (ROOT / name).exists(), name


def test_scripts_can_be_run() -> None:
    for path in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]:
        if path.is_file() and path.suffix != ".py":
            assert path.stat().st_mode & 0o111, path
            assert path.read_text().startswith("#!"), path


def test_pre_commit_hooks_are_local() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"- repo: (\S+)", text) == ["local"]
