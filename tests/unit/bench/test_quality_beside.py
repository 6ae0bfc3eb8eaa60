"""Perplexity beside llama.cpp: the rows that come, and Octavo's side of it beside NumPy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from bench import quality_beside, score_halves
from bench.rows import Context, Row
from tests.tiny import BOS_ID, dense_logits, write_tiny

ORACLE = Path(__file__).parents[2] / "data" / "smollm2-135m-instruct-q4_1.json"


def rows(rival: str | None) -> list[Row]:
    context = Context(Path(), "python", "m", quick=True, rival=rival, model_file=lambda: "m")
    return list(quality_beside.beside(context, "s", "m.gguf", ORACLE))


def rival(folder: Path, monkeypatch: pytest.MonkeyPatch, *, windows: int) -> str:
    """A llama-server beside whose tool stands in for llama-perplexity; ours scores 11 windows with 9.5."""
    (folder / "llama-perplexity").touch()
    theirs = f"calculating perplexity over {windows} chunks, n_ctx=1024\n[1]9.1,\nFinal estimate: PPL = 10.0000 +/- 0.2"
    ours = 'a line of the log\n{"perplexity": 9.5, "windows": 11}\n'
    monkeypatch.setattr(quality_beside, "_said", lambda command: theirs if "llama" in command[0] else ours)
    return str(folder / "llama-server")


def test_without_the_tool_it_is_not_run(tmp_path: Path) -> None:
    assert [row.status for row in rows(None)] == ["not run"]
    assert [row.status for row in rows(str(tmp_path / "llama-server"))] == ["not run"]


def test_both_figures_stand_in_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [row] = rows(rival(tmp_path, monkeypatch, windows=11))
    assert row.value == "9.5000 : 10.0000" and row.note == "ours : llama.cpp, -5.00 %, 11 windows"


def test_other_windows_are_no_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = rival(tmp_path, monkeypatch, windows=12)
    with pytest.raises(RuntimeError, match=r"Octavo cut 11, llama\.cpp 12"):
        rows(server)


@pytest.mark.parametrize("bos", [False, True])
def test_the_second_half_of_each_window_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bos: bool
) -> None:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    monkeypatch.setattr(score_halves, "WINDOW", 16)
    model = write_tiny(tmp_path / "model", "llama")
    settings = model / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "add_bos_token": bos}))
    text = tmp_path / "text"
    text.write_text("the thin cat in the hat, then the mat. " * 4)
    score_halves.main(str(model), text)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])

    ids = [BOS_ID] * bos + Tokenizer.from_file(str(model / "tokenizer.json")).encode(
        text.read_text(), add_special_tokens=False
    ).ids
    nll: list[float] = []
    for first in range(0, len(ids) - 15, 16):
        window = ids[first : first + 16]
        if bos:
            window[0] = BOS_ID
        logits = dense_logits(model, window)
        for place in range(9, 16):  # a token is told by the logits before it: 8 to 14 tell 9 to 15
            row = logits[place - 1]
            nll.append(float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[window[place]]))
    assert found["windows"] == len(ids) // 16 == len(nll) / 7 > 1
    assert found["perplexity"] == pytest.approx(math.exp(sum(nll) / len(nll)), rel=2e-3)  # bfloat16 weights
