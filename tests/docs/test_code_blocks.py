"""Code in README and docs is run: Python blocks whole, shell blocks command by command.

A comment before a Python block says what it needs: `<!-- run -->` nothing, `<!-- run: model -->` the demo model,
`<!-- run: server -->` a server on port 8000 (one of ours stands in on a free port). Every Python block has one.

Shell commands run in a home of their own (shell.py), with the demo model; `octavo serve` runs in the background on a
free port while the commands behind it talk to it, and our server stands in for one that a page takes for granted.
NOT_RUN holds what cannot run here, LESS the flags that make a long one short. All command lines go through the flag
readers as they are, too.
"""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from octavo.bench.process import free_port, running
from octavo.cli.flags import parse
from octavo.cli.main import COMMANDS
from tests.child import child_env
from tests.docs.shell import URL, Home, commands, with_flags, write_files
from tests.models_at_hand import smollm2

T = TypeVar("T")
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
    """Its answers are short: a page's request may set no limit, and one sampled answer in six goes on and on."""
    port = free_port()
    command = [sys.executable, "-m", "octavo", "serve", str(smollm2()), "--port", str(port)]
    flags = ["--served-model-name", "smollm2", "--max-model-len", "256"]
    with running([*command, *flags], port=port, model="smollm2", env=child_env()) as made:
        yield made.url


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


NOT_RUN = {
    "pip install .": "builds the package; the stage `install` of .ci/run does it",
    "pip install '.[test]'": "builds the package; the stage `collect` of .ci/run takes the extra from here",
    "pip install -e '.[dev,docs]'": "builds the package; the stage `environment` of .ci/run does it, not editable",
    "python3 -m venv .venv": "only the build behind it needs it; the stage `install` of .ci/run does README's",
    ". .venv/bin/activate": "only the build behind it needs it",
    "scripts/test": "runs all tests, this one too; the stage `tests` of .ci/run does it",
    "python -m bench.compare run": "needs llama-server, OpenVINO and vLLM, and hours; tests/unit/bench/test_compare.py",
    "python -m bench.compare table": "needs the records of the command above; tests/unit/bench/test_compare.py",
    "scripts/accept --only compare": "needs the same records; tests/unit/bench/test_compare.py",
}
"""How commands begin that cannot run here -> why, and what runs them instead."""
_REQUESTS = {"--num-prompts": "2", "--random-input-len": "16", "--random-output-len": "4"}
_LOAD = {**_REQUESTS, "--num-warmups": "0", "--prefix-repetition-output-len": "4"}
LESS: dict[str, dict[str, str]] = {
    "octavo chat": {"--max-tokens": "32"},
    "octavo bench serve": _LOAD,
    "octavo bench throughput": _REQUESTS,
    "octavo bench latency": {"--output-len": "4", "--num-iters": "1", "--num-iters-warmup": "0"},
    "octavo bench tune": {**_LOAD, "--tune": "max-num-batched-tokens=128"},
    "octavo bench kernels": {"--decode": "2", "--prefill": "0", "--context": "128", "--bench-threads": "1"},
    "octavo bench step": {"--streams": "1", "--prompt-len": "16", "--steps": "2", "--prefill-len": "0"},
    "octavo explain smollm2 --tokens 512": {"--tokens": "32", "--context": "32"},
}
"""How commands begin that would (or might) take minutes -> flags that cut them to seconds."""
PIPED = {"octavo chat": "Name a colour.\n"}
"""How commands begin that read -> what they read."""
TYPED = {"octavo rm --hf": "y\n"}
"""How commands begin that ask somebody at a terminal -> the answer."""


def behind(table: Mapping[str, T], command: str) -> T | None:
    """The value of the key that `command` begins with, whole words of it."""
    return next((value for key, value in table.items() if f"{command} ".startswith(f"{key} ")), None)


def test_the_tables_of_commands_hold_what_the_pages_have() -> None:
    told = [command for block in SHELL for command in commands(block.code)]
    for key in (*NOT_RUN, *LESS, *PIPED, *TYPED):
        assert any(behind({key: True}, command) for command in told), f"no page has a command that begins with {key!r}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    return Home(tmp_path_factory.mktemp("home"), smollm2())


@pytest.mark.parametrize("block", SHELL, ids=named)
def test_shell_blocks_run(block: Block, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    told = [command for command in commands(block.code) if not behind(NOT_RUN, command)]
    if not told:
        pytest.skip("; ".join(filter(None, (behind(NOT_RUN, command) for command in commands(block.code)))))
    home: Home = request.getfixturevalue("home")
    write_files(tmp_path)
    url: str | None = None
    left_out: list[str] = []
    with ExitStack() as servers:
        for command in told:
            if command.startswith("curl ") and not shutil.which("curl"):
                left_out.append(command)
                continue
            if command.startswith("octavo serve"):
                port = str(free_port())
                words = shlex.split(with_flags(command, {"--port": port}))
                url = servers.enter_context(running(words, port=int(port), model="smollm2", env=home.env())).url
                continue
            flags = behind(LESS, command)
            line = with_flags(command, flags) if flags else command
            if URL.search(line):
                line = URL.sub(url or request.getfixturevalue("server"), line)
            home.run(line, tmp_path, piped=behind(PIPED, command) or "", typed=behind(TYPED, command))
    if left_out:
        pytest.skip(f"all but {len(left_out)} commands ran; curl is not installed")


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
