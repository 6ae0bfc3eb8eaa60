"""Completion, tried in the shells themselves."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.cli import main as entry
from octavo.cli.commands import COMMANDS, spec_of
from octavo.cli.completion import FILES, FOLDERS, lines
from octavo.cli.errors import OK
from octavo.cli.spec import flags_of
from tests import homes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with the scripts, a command `octavo` before all others on the PATH, and a model in a home of its own."""
    home = homes.make_home(tmp_path / "home", monkeypatch)
    homes.put_ollama(home, "llama3.2:1b", b"GGUF")
    homes.put_lmstudio(home, "pub/m/m-Q4_0.gguf", b"GGUF")
    for shell in ("bash", "zsh", "fish"):
        assert entry.main(["completion", shell]) == OK
        (tmp_path / f"octavo.{shell}").write_text(capsys.readouterr().out)
    program = homes.write(tmp_path / "bin/octavo", f'#!/bin/sh\nexec {sys.executable} -m octavo "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    homes.write(tmp_path / "work/a file.toml", "")
    homes.write(tmp_path / "work/sub/inner.gguf", "")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def words_as_bash(line: str) -> list[str]:
    """COMP_WORDS: bash breaks at spaces, and at : and = into words of their own."""
    words: list[str] = []
    for word in line.split(" "):
        words += [w for w in re.split(r"([:=]+)", word) if w] or [""]
    return words


def complete(folder: Path, line: str) -> list[str]:
    """What bash would be answered for `line` with the cursor at its end."""
    words = words_as_bash(line)
    quoted = " ".join(f"'{w}'" for w in words)
    code = (
        f"source {folder}/octavo.bash; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({quoted}); "
        f"COMP_CWORD={len(words) - 1}; COMPREPLY=(); _octavo; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not done.stderr
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("octavo ser", ["serve"]),
        ("octavo --v", ["--version"]),
        ("octavo serve m --dty", ["--dtype"]),
        ("octavo serve m --dtype ", ["auto", "float32", "bfloat16"]),
        ("octavo serve m --dtype bf", ["bfloat16"]),
        ("octavo serve m --dtype=f", ["float32"]),
        ("octavo serve m --no-en", ["--no-enable-prefix-caching"]),
        ("octavo serve m --port ", []),
        ("octavo chat m --config a", ["a file.toml"]),
        ("octavo pull m --download-dir ", ["sub"]),
        ("octavo completion ", ["bash", "zsh", "fish"]),
        ("octavo completion z", ["zsh"]),
        ("octavo eval perp", ["perplexity"]),
        ("octavo eval perplexity smol", ["smollm2"]),
        ("octavo eval perplexity smollm2 a", ["a file.toml"]),
        ("octavo chat ", ["smollm2", "pub/m:Q4_0", "llama3.2:1b"]),
        ("octavo chat pub/m:", ["Q4_0"]),
        ("octavo chat llama3.2:1", ["1b"]),
        ("octavo run --threads 2 smol", ["smollm2"]),
        ("octavo explain su", ["sub"]),
        ("octavo rm pub", ["pub/m:Q4_0"]),
        ("octavo nothing ", []),
        ("octavo list --js", ["--json"]),
    ],
)
def test_bash(folder: Path, line: str, answers: list[str]) -> None:
    assert complete(folder, line) == answers


def test_all_commands(folder: Path) -> None:
    assert complete(folder, "octavo ") == [*COMMANDS, "--help", "--version", "--debug"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_is_offered(name: str, folder: Path) -> None:
    own = {p.name for p in spec_of(name).positionals}
    flags = [flag for field, flag in flags_of(spec_of(name)).items() if field not in own]
    texts = {f"--no-{flag.text[2:]}" if flag.default is True else flag.text for flag in flags}
    assert set(complete(folder, f"octavo {name} --")) == texts | {"--help"}


def test_models_are_asked_for_only_when_needed(folder: Path) -> None:
    homes.write(folder / "bin/octavo", "#!/bin/sh\ntouch called\n")
    assert complete(folder, "octavo serve --dty") == ["--dtype"]
    assert not Path("called").exists()
    complete(folder, "octavo serve ")
    assert Path("called").exists()


def test_flags_that_name_files_do(folder: Path) -> None:
    known = {name for command in COMMANDS for name in flags_of(spec_of(command))}
    assert {"config", "chat_template", "input"} < known & {*FILES} and {"download_dir"} <= known & {*FOLDERS}
    assert lines()["serve"].model and not lines()["list"].model


def test_tab_in_an_interactive_bash(folder: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        said = ""

        def send(text: str, until: str) -> None:
            nonlocal said
            said = ""
            os.write(terminal, text.encode())
            end = time.monotonic() + 30
            while until not in said and time.monotonic() < end:
                if select.select([terminal], [], [], 0.1)[0]:
                    said += os.read(terminal, 4096).decode(errors="replace")
            assert until in said, said

        send(f"PS1='ready''> '; source {folder}/octavo.bash\n", "ready> ")
        send("octavo serve lla\t", "llama3.2:1b")
        send(" --dtype bf\t", "bfloat16")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("octavo ser", {"serve"}),
        ("octavo serve m --dtype ", {"auto", "float32", "bfloat16"}),
        ("octavo serve m --dty", {"--dtype"}),
        ("octavo chat lla", {"llama3.2:1b"}),
        ("octavo completion z", {"zsh"}),
    ],
)
def test_fish(folder: Path, line: str, answers: set[str]) -> None:
    code = f"source {folder}/octavo.fish; complete -C '{line}'"
    done = subprocess.run(["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {text.partition("\t")[0] for text in done.stdout.splitlines()} == answers


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("octavo ser", ["serve"]),
        ("octavo serve m --dtype bf", ["bfloat16"]),
        ("octavo serve m --dtype ", ["auto", "float32", "bfloat16"]),
        ("octavo chat lla", ["llama3.2:1b"]),
        ("octavo chat pub/m:", ["pub/m:Q4_0"]),
    ],
)
def test_zsh(folder: Path, line: str, answers: list[str]) -> None:
    """As bashcompinit calls it: sh's arrays, words whole."""
    words = line.split(" ")
    quoted = " ".join(f"'{w}'" for w in words)
    code = (
        f"autoload -U +X compinit && compinit -u -D; source {folder}/octavo.zsh; call() {{ emulate -L sh; "
        f"COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        "COMPREPLY=(); _octavo; printf '%s\\n' \"${COMPREPLY[@]}\"; }; call"
    )
    done = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == answers, done.stderr
