"""How long a request may be: one number for both halves, whatever KV groups a model has."""

from __future__ import annotations

import pytest

from octavo.config.args import EngineArgs
from octavo.config.resolve import resolve
from octavo.engine.core import EngineCore
from octavo.errors import PromptTooLong
from octavo.executor.fake import FakeExecutor, fake_facts
from octavo.llm.intake import Intake
from octavo.sched.scheduler import Scheduler
from octavo.text.tokenizer import Tokenizer
from octavo.types import SamplingParams


@pytest.mark.parametrize(
    ("windows", "num_blocks", "longest"),
    [
        ([None], 3, 32),
        ([None, None], 9, 64),
        ([40], 6, 1000),  # 39 + 16 positions in a row touch at most 5 blocks
        ([40], 5, 64),
        ([None, 40], 26, 320),
    ],
    ids=["full", "two full", "sliding", "sliding, a small pool", "mixed"],
)
@pytest.mark.parametrize("chain", [1, 3])
def test_the_pool_bounds_the_length(
    tokenizer: Tokenizer, windows: list[int | None], num_blocks: int, longest: int, chain: int
) -> None:
    """The front half takes what the scheduler takes, no more and no less."""
    facts = fake_facts(windows=windows, num_blocks=num_blocks, model_len=1000, vocab_size=320)
    args = EngineArgs(model="fake", max_num_seqs=4, max_num_batched_tokens=16, depth=chain, chain=chain)
    config = resolve(args, facts)
    front = Intake(tokenizer=tokenizer, facts=facts, config=config)
    scheduler = Scheduler(config.scheduler, facts)
    assert front.max_len == config.max_model_len == scheduler.intake.longest == longest
    with pytest.raises(PromptTooLong, match=f"allowed: up to {longest - 1} "):
        front.prepare([1] * longest, SamplingParams())
    (request,) = front.prepare([1] * (longest - 2), SamplingParams(max_tokens=2)).requests
    assert scheduler.add(request) is None
    assert scheduler.stats().clamped == 0
    core = EngineCore(scheduler, FakeExecutor(facts), depth=chain)
    while core.has_work:
        core.step()
    assert core.stats().blocks_used == 0
