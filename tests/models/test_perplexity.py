"""`octavo eval perplexity`: its figure on a tiny random model beside NumPy's, and on SmolLM2 beside the oracle's.

The tiny model's truth has nothing of Octavo in it: ids from the `tokenizers` package, logits in float64, windows cut
here.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from bench.quality import oracle_texts
from octavo.cli.evaluate import run
from tests.child import child_env
from tests.models_at_hand import smollm2
from tests.tiny import BOS_ID, dense_logits, write_tiny

TEXTS = {"long.txt": "the thin cat in the hat, then the mat. " * 4 + "One more!", "short.txt": "no café in the bath"}


def evaluated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON that `octavo eval perplexity WORDS --json` prints."""
    code = run(["perplexity", *words, "--json"])
    out = capsys.readouterr().out
    assert code == 0, out
    found: dict[str, Any] = json.loads(out)
    return found


def truth(directory: Path, text: str, *, window: int, bos: list[int]) -> tuple[float, int]:
    """Sum of negative log-likelihoods (nats) and the number of tokens scored."""
    ids = Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    nll, count = 0.0, 0
    for first in range(0, len(ids), window):
        piece = bos + ids[first : first + window]
        if len(piece) < 3:  # documented: a last window this short is left out
            continue
        logits = dense_logits(directory, piece)[:-1]
        top = logits.max(-1, keepdims=True)
        chosen = np.take_along_axis(logits - top, np.array(piece[1:])[:, None], 1)[:, 0]
        nll += float((np.log(np.exp(logits - top).sum(-1)) - chosen).sum())
        count += len(piece) - 1
    return nll, count


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "bos"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A model, and the ids that begin each of its windows."""
    directory = write_tiny(tmp_path_factory.mktemp("tiny"), "llama")
    settings = directory / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "add_bos_token": request.param}))
    return directory, [BOS_ID] * request.param


@pytest.mark.parametrize("executor", ["reference", "native"])
@pytest.mark.parametrize("window", [7, 16, 64, 1024])
def test_the_figure_is_numpys(
    tiny: tuple[Path, list[int]], window: int, executor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if executor == "native":
        pytest.importorskip("octavo._native", reason="the native module is not built")
    directory, bos = tiny
    paths = {str(tmp_path / name): text for name, text in TEXTS.items()}
    for path, text in paths.items():
        Path(path).write_text(text)
    flags = ["--window", str(window), "--executor", executor, "--dtype", "float32", "--threads", "1"]
    found = evaluated(capsys, str(directory), *paths, *flags)
    truths = {path: truth(directory, text, window=window, bos=bos) for path, text in paths.items()}
    for path, (nll, count) in truths.items():
        assert found["files"][path]["tokens"] == count
        assert found["files"][path]["perplexity"] == pytest.approx(math.exp(nll / count), rel=1e-4)
    nll = sum(one for one, _ in truths.values())
    count = sum(one for _, one in truths.values())
    assert found["pooled"]["tokens"] == count
    assert found["pooled"]["perplexity"] == pytest.approx(math.exp(nll / count), rel=1e-4)


def test_each_of_these_windows_has_a_figure_of_its_own(tiny: tuple[Path, list[int]]) -> None:
    """The test above can tell them apart."""
    directory, bos = tiny
    figures = {w: truth(directory, TEXTS["long.txt"], window=w, bos=bos) for w in (7, 16, 64, 1024)}
    perplexities = sorted(math.exp(nll / count) for nll, count in figures.values())
    assert all(b / a > 1 + 1e-3 for a, b in pairwise(perplexities))


ORACLE: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "smollm2-135m-instruct-q4_1.json").read_text()
)["perplexity_ctx1024"]
"""In float32, by transformers: texts by name, with their sha256, tokens scored and perplexity in windows of 1024."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Of each of the oracle's texts that this machine has: what `octavo eval perplexity` says of SmolLM2 as served."""
    pytest.importorskip("octavo._native", reason="the native module is not built")
    model, folder = smollm2(), tmp_path_factory.mktemp("texts")
    texts = oracle_texts(ORACLE)
    if not texts:
        pytest.skip(f"this machine has other versions of all of the oracle's texts: {', '.join(ORACLE)}")
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    command = [sys.executable, "-m", "octavo", "eval", "perplexity", str(model), *texts, "--window", "1024", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=child_env(), timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, float]] = json.loads(done.stdout)["files"]
    return found


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("name", ORACLE)
def test_each_text_as_served(served: dict[str, dict[str, float]], name: str) -> None:
    """The oracle's tokens, and near its figure: one text may lie further off than all of them together."""
    if name not in served:
        pytest.skip(f"{name}: this machine has another version of the text than the oracle's")
    assert served[name]["tokens"] == ORACLE[name]["tokens"]
    assert served[name]["perplexity"] == pytest.approx(ORACLE[name]["ppl"], rel=0.02)


@pytest.mark.model
@pytest.mark.slow
def test_the_texts_pooled_as_served(served: dict[str, dict[str, float]]) -> None:
    """Within 1 % of float32, pooled over the texts at hand (all four, where the machine has the oracle's versions)."""
    tokens = sum(ORACLE[name]["tokens"] for name in served)
    ours = sum(math.log(f["perplexity"]) * f["tokens"] for f in served.values()) / tokens
    theirs = sum(math.log(ORACLE[name]["ppl"]) * ORACLE[name]["tokens"] for name in served) / tokens
    assert math.exp(ours - theirs) == pytest.approx(1, abs=0.01)
