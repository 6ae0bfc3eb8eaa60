"""OpenVINO GenAI behind the small server of openvino_server.py, since its package has none."""

from __future__ import annotations

from pathlib import Path

from bench.compare.engine import Model, missing, said

SERVER = Path(__file__).with_name("openvino_server.py")
READS = ("Q4_0", "Q4_1", "Q8_0")
"""What its reader of GGUF files opens; K-quants and bf16 it refuses. Names of files tell the type."""


class OpenVino:
    """The GGUF file through ContinuousBatchingPipeline: 512 tokens a step, split prompts, 32 streams, prefix cache."""

    name = "openvino"
    caveat = "behind a tiny HTTP adapter that neither tokenises nor detokenises, which flatters it"

    def __init__(self, python: Path, threads: int) -> None:
        self.python, self.threads = python, threads

    def refuses(self, model: Model) -> str | None:
        why = missing(self.python, "Python with openvino-genai") or missing(model.gguf, "GGUF file")
        if why is None and model.gguf is not None and not any(kind in model.gguf.name.upper() for kind in READS):
            return f"it opens GGUF files of {', '.join(READS)} only"
        return why

    def weights(self, model: Model) -> Path:
        assert model.gguf is not None, "refuses() said it can"
        return model.gguf

    def command(self, model: Model, port: int) -> list[str]:
        flags = ["--port", str(port), "--threads", str(self.threads)]
        # -P: the server's folder, where this file is, must not stand for the package of its name.
        return [str(self.python), "-P", str(SERVER), str(self.weights(model)), *flags]

    def environment(self) -> dict[str, str]:
        return {}

    def version(self) -> str:
        return said([str(self.python), "-c", "import openvino_genai; print(openvino_genai.__version__)"])
