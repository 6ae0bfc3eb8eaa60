"""The engine's process before anybody talks to it.

A command starts it as soon as it knows its arguments: the engine has more to import than the front half, so both begin
at once. Nothing here reaches zmq or NumPy.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from octavo.errors import EngineDead
from octavo.kernels.affinity import named_cpus

MAX_SOCKET_DIR = 80
"""A unix socket's path has at most 107 bytes."""


class Spawned:
    """A process that imports what `executor` will need and then connects to `address`, where nobody may listen yet.

    It ends when we close it or die, and its helpers with it. `close` may be called from any thread: who waits for one
    of the processes sees its end. A context manager for those who may fail before a client takes it.
    """

    def __init__(self, executor: str, cpus: str | None = None) -> None:
        """`cpus`: those it keeps to, as in "0-3,8". Raises ConfigError for one that we may not use."""
        named_cpus(cpus)
        self.directory = _private_dir()
        self.address = f"ipc://{self.directory}/engine"
        self.process = _spawn("octavo.engine.proc", self.address, executor, *filter(None, [cpus]), stdout=2)
        self._all = [self.process]
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _destroy, self._all, self.directory)

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def helper(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """One more process, whose standard output is ours to read. Raises EngineDead after `close`."""
        with self._lock:
            if self.closed:
                raise EngineDead("the engine was closed before it had started")
            process = _spawn(module, *arguments, stdout=subprocess.PIPE)
            self._all.append(process)
        return process

    def close(self) -> None:
        """Kill what still runs and remove the directory. Safe to call twice."""
        with self._lock:
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


def _spawn(module: str, *arguments: str, stdout: int) -> subprocess.Popen[bytes]:
    """Start by exec. The process sees our death as the end of its standard input.

    It has a session of its own, so that Ctrl-C in a terminal reaches only us and we can drain.
    """
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        # NumPy's BLAS starts a thread a core at import; kernels have their own team.
        env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
        start_new_session=True,
    )


def _destroy(processes: Sequence[subprocess.Popen[bytes]], directory: Path) -> None:
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):  # another thread has just seen its end
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started itself
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
    shutil.rmtree(directory, ignore_errors=True)
