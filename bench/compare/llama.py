"""llama.cpp's llama-server."""

from __future__ import annotations

from pathlib import Path

from bench.compare.engine import Model, missing, said

SLOTS, CONTEXT = 32, 73728
"""32 slots of 2,304 positions each: the longest load is 2,048 in and 32 out."""


class LlamaServer:
    """The GGUF file; slots divide the context evenly, flash attention on, as its guide says for many streams."""

    name, caveat = "llama-server", ""

    def __init__(self, binary: Path, threads: int) -> None:
        self.binary, self.threads = binary, threads

    def refuses(self, model: Model) -> str | None:
        return missing(self.binary, "llama-server") or missing(model.gguf, "GGUF file")

    def weights(self, model: Model) -> Path:
        assert model.gguf is not None, "refuses() said it can"
        return model.gguf

    def command(self, model: Model, port: int) -> list[str]:
        threads = str(self.threads)
        where = ["-m", str(self.weights(model)), "--alias", "m", "--host", "127.0.0.1", "--port", str(port)]
        streams = ["-t", threads, "-tb", threads, "-np", str(SLOTS), "-c", str(CONTEXT), "-no-kvu", "-fa", "on"]
        return [str(self.binary), *where, *streams, "--no-webui"]

    def environment(self) -> dict[str, str]:
        return {}

    def version(self) -> str:
        """Its first line; a package of the sources carries the release only in its folder's name."""
        return said([str(self.binary), "--version"]).splitlines()[0].removeprefix("version: ")
