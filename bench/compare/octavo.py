"""Octavo itself, as its users start it: no flag is set for the loads."""

from __future__ import annotations

from pathlib import Path

from bench.compare.engine import Model, said

ROOT = Path(__file__).resolve().parents[2]


class Octavo:
    """Serves the GGUF file, or the directory where there is none."""

    name, caveat = "octavo", ""

    def __init__(self, python: str, threads: int) -> None:
        self.python, self.threads = python, threads

    def refuses(self, model: Model) -> str | None:
        path = model.gguf or model.directory
        if path is None:
            return "no GGUF file and no directory given"
        return None if path.exists() else f"no such file: {path.name}"

    def weights(self, model: Model) -> Path:
        path = model.gguf or model.directory
        assert path is not None, "refuses() said it can"
        return path

    def command(self, model: Model, port: int) -> list[str]:
        flags = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m"]
        return [self.python, "-m", "octavo", "serve", str(self.weights(model)), *flags, "--threads", str(self.threads)]

    def environment(self) -> dict[str, str]:
        return {}

    def version(self) -> str:
        """Package version and commit: a figure belongs to a commit."""
        package = said([self.python, "-c", "import octavo; print(octavo.__version__)"]).splitlines()[-1]
        commit = said(["git", "-C", str(ROOT), "describe", "--always", "--dirty"])
        return f"{package} ({commit})"
