"""Install as a user does, and the wheel in a clean environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.machine import disk_mb
from bench.rows import Context, Row, Table, below, holds

SECTION = "1 Install"


@contextmanager
def fresh_install(root: Path, table: Table) -> Iterator[str]:
    """`pip install .` into a new environment, timed and weighed; yields its interpreter."""
    with tempfile.TemporaryDirectory(prefix="octavo-accept-") as folder:
        venv = Path(folder) / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        python = str(venv / "bin" / "python")
        began = time.perf_counter()
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(root)], check=True)
        seconds = time.perf_counter() - began
        cores = len(os.sched_getaffinity(0))
        table.add(below(SECTION, "pip install .", seconds, 180, "s", note=f"{cores} cores, downloads included"))
        table.add(below(SECTION, "environment on disk", disk_mb(venv), 250, "MB", note="octavo, its packages and pip"))
        frozen = subprocess.run(
            [python, "-m", "pip", "list", "--format=freeze"], check=True, capture_output=True, text=True
        )
        names = {line.partition("==")[0].lower() for line in frozen.stdout.splitlines()}
        table.add(holds(SECTION, "no torch", "torch" not in names, target="absent", value=f"{len(names)} packages"))
        yield python


def wheel(c: Context) -> Iterator[Row]:
    """scripts/wheel: sdist, wheel from it, one prompt from that wheel with no compiler on PATH."""
    section, name = "10 Repository", "sdist -> wheel -> a prompt, clean environment, no compiler"
    env = os.environ | {"PYTHON": sys.executable, "OCTAVO_WHEEL_MODEL": c.model_file()}
    done = subprocess.run([str(c.root / "scripts" / "wheel")], capture_output=True, text=True, env=env, timeout=1800)
    size = next(
        (int(w) for line in done.stdout.splitlines() if line.startswith("wheel:") for w in line.split()[2:3]), None
    )
    if size is not None:
        yield below(section, "wheel", size / 1e6, 20, "MB")
    note = "" if done.returncode == 0 else (done.stderr.strip() or done.stdout.strip())[-200:]
    yield holds(section, name, done.returncode == 0, target="an answer", value=f"exit {done.returncode}", note=note)
