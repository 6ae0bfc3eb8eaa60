"""Perplexity of a file in Octavo and in llama.cpp, over the same tokens: its tool fixes the rules, Octavo follows them.

`llama-perplexity` (it lies beside llama-server) cuts a text into windows of `WINDOW` tokens that start afresh, drops
the rest, puts BOS in place of a window's first token where the model wants one, and scores a window's second half.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.quality import oracle_texts
from bench.rows import Context, Row, not_run, shown
from bench.score_halves import WINDOW

CHILD = Path(__file__).with_name("score_halves.py")
TITLE = "perplexity beside llama-perplexity, same tokens"


def beside(c: Context, section: str, model: str, oracle: Path) -> Iterator[Row]:
    """One row; both read the oracle's texts that this machine has, joined."""
    tool = Path(c.rival).with_name("llama-perplexity") if c.rival else None
    if tool is None or not tool.exists():
        yield not_run(section, TITLE, "reported", "give --rival PATH of llama-server, with llama-perplexity beside it")
        return
    texts = oracle_texts(json.loads(oracle.read_text())["perplexity_ctx1024"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text"
        path.write_text("\n\n".join(texts.values()), encoding="utf-8")
        ours = json.loads(re.findall(r"^\{.*\}$", _said([c.python, str(CHILD), model, str(path)]), re.M)[-1])
        flags = ["-m", model, "-f", str(path), "-c", str(WINDOW), "-t", "2", "-fa", "on"]
        theirs = _said([str(tool), *flags])
    windows, value = re.search(r"over (\d+) chunks", theirs), re.search(r"Final estimate: PPL = ([0-9.]+)", theirs)
    if windows is None or value is None:
        yield not_run(section, TITLE, "reported", f"llama-perplexity said: {theirs.strip()[-200:]}")
        return
    if int(windows[1]) != ours["windows"]:
        raise RuntimeError(f"windows: Octavo cut {ours['windows']}, llama.cpp {windows[1]}; the tokenizers differ")
    other = float(value[1])
    text = f"{ours['perplexity']:.4f} : {other:.4f}"
    note = f"ours : llama.cpp, {100 * (ours['perplexity'] / other - 1):+.2f} %, {ours['windows']} windows"
    yield shown(section, TITLE, text, note=note)


def _said(command: list[str]) -> str:
    """Everything a command prints; RuntimeError with its last words where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {(done.stdout + done.stderr).strip()[-300:]}")
    return done.stdout + done.stderr
