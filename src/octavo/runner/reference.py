"""The NumPy reference as a backend: the specification, for tests and for `--executor reference`."""

from __future__ import annotations

from collections.abc import Callable

from octavo.config.args import EngineArgs
from octavo.program.executable import ExecutableSpec
from octavo.program.interpret import ReferenceExecutable
from octavo.runner.runner import Backend
from octavo.weights.checkpoint import Checkpoint


def load(
    args: EngineArgs,
    spec: ExecutableSpec,
    checkpoint: Checkpoint,
    *,
    num_blocks: int,
    progress: Callable[[float], None],
) -> tuple[Backend, str, int]:
    """A `Load` (runner/loader.py). Weights become dense float32."""
    total = sum(t.nbytes for t in checkpoint.tensors.values())
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(min(1.0, done / total))

    backend = ReferenceExecutable.load(spec, checkpoint.tensors, num_blocks=num_blocks, progress=advance)
    return backend, "numpy", 1
