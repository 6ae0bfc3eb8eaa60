"""The engine's process before anybody talks to it.

A command starts it as soon as it knows its arguments: the engine has more to import than the front half, so both begin
at once. Nothing here reaches zmq or NumPy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from types import TracebackType

from octavo.kernels.affinity import named_cpus

MAX_SOCKET_DIR = 80
"""A unix socket's path has at most 107 bytes."""


class Spawned:
    """A process that imports what `executor` will need and then connects to `address`, where nobody may listen yet.

    It ends when we close it or die. A context manager for those who may fail before a client takes it.
    """

    def __init__(self, executor: str, cpus: str | None = None) -> None:
        """`cpus`: those it keeps to, as in "0-3,8". Raises ConfigError for one that we may not use."""
        named_cpus(cpus)
        self.directory = _private_dir()
        self.address = f"ipc://{self.directory}/engine"
        self.process = _spawn(self.address, executor, *filter(None, [cpus]))
        self._finalizer = weakref.finalize(self, _destroy, self.process, self.directory)

    def close(self) -> None:
        """Kill it where it still runs and remove its directory. Safe to call twice."""
        self._finalizer()

    def __enter__(self) -> Spawned:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _private_dir() -> Path:
    """A new directory only this user may enter (0700)."""
    path = tempfile.mkdtemp(prefix="octavo-engine-")
    if len(path) > MAX_SOCKET_DIR:
        os.rmdir(path)
        path = tempfile.mkdtemp(prefix="octavo-engine-", dir="/tmp")
    return Path(path)


def _spawn(*arguments: str) -> subprocess.Popen[bytes]:
    """Start by exec. The engine sees our death as the end of its standard input.

    It has a session of its own, so that Ctrl-C in a terminal reaches only us and we can drain.
    """
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "octavo.engine.proc", *arguments],
        stdin=subprocess.PIPE,
        stdout=2,
        # NumPy's BLAS starts a thread a core at import; kernels have their own team.
        env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
        start_new_session=True,
    )


def _destroy(process: subprocess.Popen[bytes], directory: Path) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
    shutil.rmtree(directory, ignore_errors=True)
