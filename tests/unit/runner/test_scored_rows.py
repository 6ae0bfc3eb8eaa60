"""Scores of a prompt take a bounded memory, whatever the vocabulary (R24)."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.config.args import EngineArgs
from octavo.runner import loader
from octavo.runner.loader import plan_model, scored_rows
from octavo.runner.memory import Machine
from octavo.types import TokenLogprobs
from octavo.weights.checkpoint import open_checkpoint
from tests.tiny import VOCAB, write_tiny

MACHINE = Machine(total=1 << 36, available=1 << 35)
LIMIT = 100_000_000
"""Bytes that the scores of a prompt may add."""


@pytest.mark.parametrize("vocab", [1, 320, 49_152, 128_256, 151_936, 262_144, 100_000_000])
def test_a_tile_of_logits_is_bound_by_bytes(vocab: int) -> None:
    rows = scored_rows(vocab)
    assert 1 <= rows <= 256
    assert rows == 1 or 4 * rows * vocab < LIMIT


def test_the_plan_has_that_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny(tmp_path, "llama")
    args = EngineArgs(model=str(path), max_num_seqs=4)

    def arena() -> tuple[int, int]:
        spec = plan_model(args, open_checkpoint(path), machine=MACHINE).spec
        return spec.limits.max_rows, spec.arena_bytes

    assert arena()[0] == 256
    whole = arena()[1]
    monkeypatch.setattr(loader, "LOGIT_BYTES", 4 * VOCAB * 40)
    assert arena()[0] == 40 and arena()[1] < whole
    monkeypatch.setattr(loader, "LOGIT_BYTES", 4 * VOCAB * 2)
    assert arena()[0] == 4, "one a sequence, always"


@pytest.mark.parametrize("executor", ["reference", "native"])
def test_tiles_change_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    if executor == "native":
        pytest.importorskip("octavo._native", reason="the native module is not built")
    path = write_tiny(tmp_path, "llama")
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, prompt_logprobs=2)

    def scores() -> list[TokenLogprobs | None]:
        with LLM(str(path), executor=executor, max_num_seqs=4, num_kv_blocks=20, threads=1) as llm:
            (out,) = llm.generate([[i % 250 for i in range(3, 120)]], params, use_tqdm=False)
        assert out.prompt_logprobs is not None and len(out.prompt_logprobs) == 117
        return out.prompt_logprobs

    whole = scores()
    monkeypatch.setattr(loader, "LOGIT_BYTES", 4 * VOCAB * 7)
    tiled = scores()
    if executor == "native":
        assert tiled == whole
        return
    for a, b in zip(whole[1:], tiled[1:], strict=True):  # NumPy's products depend on the number of rows
        assert a is not None and b is not None
        assert a.chosen.token == b.chosen.token and a.chosen.logprob == pytest.approx(b.chosen.logprob, abs=1e-4)
