"""Code in README and docs is run: Python blocks whole, command lines through the commands' own flag readers.

A comment before a Python block says what it needs: `<!-- run -->` nothing, `<!-- run: model -->` the demo model,
`<!-- run: server -->` a server on port 8000 (one of ours stands in on a free port). Every Python block has one.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from octavo.cli.flags import parse
from octavo.cli.main import COMMANDS
from tests.child import child_env
from tests.models_at_hand import smollm2

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    page: str
    line: int
    language: str
    needs: str | None
    """What the comment above says; None: there is none."""
    code: str


def blocks() -> Iterator[Block]:
    for page in PAGES:
        if "_build" in page.parts:
            continue
        text = page.read_text()
        pattern = r"(?:<!-- run(?:: (\w+))? (-->)\n)?^```(python|bash|console|sh)\n(.*?)^```$"
        for match in re.finditer(pattern, text, re.S | re.M):
            needs = (match[1] or "") if match[2] else None
            line = text.count("\n", 0, match.start(3)) + 1
            yield Block(str(page.relative_to(ROOT)), line, match[3], needs, match[4])


ALL = list(blocks())
PYTHON = [b for b in ALL if b.language == "python"]
SHELL = [b for b in ALL if b.language != "python"]


def named(block: Block) -> str:
    return f"{block.page}:{block.line}"


def test_every_python_block_says_how_it_runs() -> None:
    assert PYTHON
    assert [named(b) for b in PYTHON if b.needs not in ("", "model", "server")] == []


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from bench.serving import free_port, serve

    port = free_port()
    command = [sys.executable, "-m", "octavo", "serve", str(smollm2()), "--port", str(port)]
    with serve([*command, "--served-model-name", "smollm2"], port=port, model="smollm2") as running:
        yield running.url


@pytest.mark.parametrize("block", PYTHON, ids=named)
def test_python_blocks_run(block: Block, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    code = block.code
    if block.needs == "model":
        code = code.replace('"smollm2"', repr(str(smollm2())))
    elif block.needs == "server":
        code = code.replace("http://127.0.0.1:8000", request.getfixturevalue("server"))
    program = tmp_path / "block.py"
    program.write_text(code)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=child_env(), timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()


def command_lines() -> Iterator[tuple[str, list[str]]]:
    for block in SHELL:
        for line in re.sub(r"\\\n", " ", block.code).splitlines():
            for part in re.split(r"&&|\|\||;|\|", line):
                words = part.strip()
                if words.startswith("octavo "):
                    yield f"{block.page}: {words}", shlex.split(words)[1:]


@pytest.mark.parametrize("words", [pytest.param(w, id=name) for name, w in command_lines()])
def test_octavo_command_lines_are_valid(words: list[str]) -> None:
    name, *rest = words
    module = importlib.import_module(COMMANDS[name].module)
    spec = module.spec_of(rest.pop(0)) if name == "bench" else module.SPEC
    if name == "eval":
        assert rest.pop(0) == "perplexity"
    assert parse(spec, rest) is not None


def test_scripts_that_pages_name_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"(?<![\w/])((?:scripts|bench|\.ci)/[\w.-]+)", page.read_text()):
            assert (ROOT / name.rstrip(".")).exists(), f"{page.name} names {name}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "SECURITY.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_that_pages_name_exist() -> None:
    """`sched/kv.py`, `runner/`, `octavo/errors.py`: relative to the package, the repository, or src."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "how-it-works.md"]:
        for name in re.findall(r"`([a-z_]+/[\w./-]*?)`", page.read_text()):
            places = (ROOT / "src" / "octavo", ROOT, ROOT / "src", ROOT / "tests")
            assert any((place / name).exists() for place in places), f"{page.name} names {name}"
