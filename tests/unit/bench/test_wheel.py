"""scripts/wheel and the stage of .ci/run around it, with a stand-in for Python: what counts as an answer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = """#!/bin/bash
# Builds, lists and installs as far as scripts/wheel looks.
case "$*" in
    "-m build --sdist --outdir "*) touch "$5/octavo-0.tar.gz" ;;
    "-m pip wheel "*) touch "$7/octavo-0.whl" ;;
    "-m zipfile "*) echo octavo/py.typed octavo/_native.pyi octavo/weights/catalogue.toml octavo/cli/main.py ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$(dirname "$0")/octavo" "$3/bin" ;;
esac
"""
OCTAVO = """#!/bin/sh
case "$1" in
    run) printf '{answer}' ;;
    pull) exit {pulled} ;;
esac
"""


def stand_ins(folder: Path, *, answer: str = "", pulled: int = 0) -> Path:
    """bin/python and bin/octavo in `folder`."""
    (folder / "bin").mkdir(parents=True)
    for name, text in (("python", PYTHON), ("octavo", OCTAVO.format(answer=answer, pulled=pulled))):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    return folder / "bin" / "python"


@pytest.mark.parametrize(
    ("model", "answer", "code"),
    [("m", "The sky is blue.", 0), ("m", "", 1), ("m", r" \n\n", 1), ("none", "The sky is blue.", 77)],
)
def test_a_wheel_must_answer(tmp_path: Path, model: str, answer: str, code: int) -> None:
    env = os.environ | {"PYTHON": str(stand_ins(tmp_path, answer=answer)), "OCTAVO_WHEEL_MODEL": model}
    done = subprocess.run([str(ROOT / "scripts" / "wheel")], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert ("The sky" in done.stdout) == (code == 0) and ("the answer is empty" in done.stderr) == (code == 1)


@pytest.mark.parametrize(
    ("answer", "pulled", "verdict", "code"),
    [
        ("Blue.", 0, "ok", 0),
        ("", 0, "FAILED (code 1)", 1),
        ("Blue.", 1, "skipped: built, installed and started; no prompt: the demo model is not here", 0),
    ],
)
def test_the_stage_says_what_it_left_out(tmp_path: Path, answer: str, pulled: int, verdict: str, code: int) -> None:
    stand_ins(tmp_path / "dev", answer=answer, pulled=pulled)
    text = (ROOT / ".ci" / "run").read_text()
    head, _, tail = text.partition("\nalways=(copy)\n")
    stubs = (
        f'copy() {{ mkdir -p "$tree/scripts" && cp "{ROOT}/scripts/wheel" "$tree/scripts"; }}\n'
        f'environment() {{ cp -r "{tmp_path}/dev" "$dev"; }}\n'
    )
    script = tmp_path / ".ci" / "run"
    script.parent.mkdir()
    script.write_text(f"{head}\n{stubs}\nalways=(copy)\n{tail}")
    done = subprocess.run(["bash", str(script), "wheel"], capture_output=True, text=True, timeout=60)
    (line,) = [text for text in done.stdout.splitlines() if text.startswith("wheel  ")]
    assert line.split(maxsplit=2)[2] == verdict and done.returncode == code, done.stdout + done.stderr
