"""Shell blocks as commands that can be run here, and a home and folders in which they are."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from octavo.weights.catalogue import load_catalogue
from tests.child import ROOT, child_env
from tests.tiny import write_tiny

URL = re.compile(r"http://127\.0\.0\.1:\d+")
COMMIT = "0" * 40


def commands(code: str) -> Iterator[str]:
    """The commands of a block in their order, each on its own: cut at ends of lines outside quotes, and at `&&`."""
    open_lines = ""
    for line in re.sub(r"\\\n\s*", "", code).splitlines():
        open_lines += re.sub(r"\s+#\s.*$", "", line)
        try:
            words = shlex.split(open_lines, comments=True)
        except ValueError:  # a quotation goes on
            open_lines += "\n"
            continue
        if words:
            pieces = re.split(r"\s+&&\s+", open_lines.strip())
            # Each piece has a shell of its own, and what stands in quotes is cut as if it did not.
            assert len(pieces) == words.count("&&") + 1, f"&& inside quotes: {open_lines}"
            assert not any(p.startswith(("cd ", "export ")) for p in pieces), f"lost in the next shell: {open_lines}"
            yield from pieces
        open_lines = ""
    assert not open_lines, f"a quotation is not closed: {open_lines}"


def with_flags(command: str, flags: Mapping[str, str]) -> str:
    """`octavo ...` with these values of flags, in the place of its own where it has them."""
    words = shlex.split(command, comments=True)
    for flag, value in flags.items():
        if flag in words:
            words[words.index(flag) + 1] = value
        else:
            words += [flag, value]
    return shlex.join(words)


class Home:
    """A user's home in `folder`, where nothing can be fetched.

    The demo model lies in Octavo's cache (as `smollm2`) and in Hugging Face's (as `org/name:Q4_K_M`), as copies, which
    commands may delete.
    """

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self._done: set[str] = set()
        entry = load_catalogue()["smollm2"]
        own = folder / ".cache" / "octavo" / "models" / f"smollm2-{entry.sha256[:12]}" / Path(entry.member).name
        hub = folder / ".cache" / "huggingface" / "hub" / "models--org--name"
        snapshot = hub / "snapshots" / COMMIT
        for path in (own.parent, hub / "blobs", hub / "refs", snapshot):
            path.mkdir(parents=True)
        shutil.copy(model, own)
        (hub / "blobs" / entry.sha256).hardlink_to(own)
        (snapshot / "name-Q4_K_M.gguf").symlink_to(Path("..", "..", "blobs", entry.sha256))
        (hub / "refs" / "main").write_text(COMMIT)
        # The octavo of this process, whether or not one is installed on PATH.
        command = folder / "bin" / "octavo"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m octavo "$@"\n')
        command.chmod(0o755)
        (folder / ".curlrc").write_text("fail\nsilent\nshow-error\n")  # an HTTP error is a failure

    def env(self) -> dict[str, str]:
        """Of a command: ours, without what would lead out of this home."""
        ours = child_env(HOME=str(self.folder), HF_HUB_OFFLINE="1")
        ours["PATH"] = f"{self.folder / 'bin'}:{ours['PATH']}"
        away = ("XDG_", "HF_HOME", "HF_HUB_CACHE", "OCTAVO_", "LLAMA_CACHE", "OLLAMA_MODELS", "CURL_HOME")
        return {key: value for key, value in ours.items() if not key.startswith(away)}

    def run(self, command: str, cwd: Path, *, piped: str = "", typed: str | None = None) -> None:
        """Run it to its end in `cwd`. What changed no file there is not run a second time: it would be the same test.

        Raises AssertionError unless it ends with 0, and says something or changes a file.

        `piped` is its standard input; with `typed` that is a terminal instead, where somebody types this.
        """
        if command in self._done:
            return
        before = times(cwd)
        with ExitStack() as files:
            stdin = files.enter_context(tempfile.TemporaryFile())
            stdin.write(piped.encode())
            stdin.seek(0)
            if typed is not None:
                keyboard, stdin = (files.enter_context(os.fdopen(end, "r+b", 0)) for end in os.openpty())
                keyboard.write(typed.encode())
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=cwd,
                env=self.env(),
                stdin=stdin,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        assert done.returncode == 0, f"{command}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        changed = times(cwd) != before
        assert changed or done.stdout.strip(), f"{command}: nothing came of it\n{done.stderr[-3000:]}"
        if not changed:
            self._done.add(command)


def write_files(folder: Path) -> None:
    """The files that commands of the pages name, short ones."""
    for name in ("README.md", "LICENSE"):
        (folder / name).write_text((ROOT / name).read_text()[:1500])
    (folder / "questions.jsonl").write_text('{"prompt": "Hi", "max_tokens": 4}\n' * 2)
    (folder / "prompts.jsonl").write_text('{"prompt": "Hello", "max_tokens": 4}\n' * 2)
    write_tiny(folder / "model")


def times(folder: Path) -> dict[Path, int]:
    """When each file in it was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
