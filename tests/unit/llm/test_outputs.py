"""From steps to text."""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.config.resolve import EngineConfig
from octavo.engine.messages import EngineStats, Outputs
from octavo.errors import EngineDead, InvalidRequest
from octavo.facts import Facts
from octavo.llm.intake import Intake
from octavo.llm.outputs import OutputProcessor, RequestState
from octavo.obs.metrics import Histogram, Metrics
from octavo.sched.refused import Refused
from octavo.text.tokenizer import Tokenizer
from octavo.types import FinishReason, Logprob, SamplingParams, SeqOutput, TokenLogprobs
from tests.unit.text.conftest import metaspace_json

STATS: Any = None  # no test here looks at the snapshot


class Front:
    """An intake and an output processor, joined."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.metrics = Metrics()
        self.outputs = OutputProcessor(tokenizer=intake.tokenizer, metrics=self.metrics)
        self.updates = 0

    def open(self, params: SamplingParams, prompt: str = "p") -> RequestState:
        self.updates = 0
        return self.outputs.open(self.intake.prepare(prompt, params), self._update)

    def _update(self) -> None:
        self.updates += 1

    def push(self, *outs: SeqOutput) -> list[int]:
        stats: EngineStats = STATS
        return self.outputs.handle(Outputs(list(outs), stats))


@pytest.fixture
def front(intake: Intake) -> Front:
    return Front(intake)


def ids(text: str) -> list[int]:
    return list(text.encode())


def test_a_leading_space_is_part_of_the_answer(facts: Facts, config: EngineConfig) -> None:
    """SentencePiece: after a prompt ▁a is " a", as the first text of all it is "a"."""
    tokenizer = Tokenizer.from_json(metaspace_json(), {"bos_token": "<s>"})
    front = Front(Intake(tokenizer=tokenizer, facts=facts, config=config))
    space_a = tokenizer.token_id("▁a")
    assert space_a is not None
    for prompt, want in (("ab", " a"), ("", "a")):
        state = front.open(SamplingParams(), prompt)
        front.push(SeqOutput(state.seqs[0].seq_id, [space_a], FinishReason.LENGTH))
        assert state.take().outputs[0].text == want


def test_text_grows_by_deltas(front: Front) -> None:
    state = front.open(SamplingParams())
    seq = state.seqs[0].seq_id
    front.push(SeqOutput(seq, ids("a"), cached_tokens=5))
    first = state.take()
    assert (first.outputs[0].delta, first.finished, first.num_cached_tokens) == ("a", False, 5)
    front.push(SeqOutput(seq, ids("b")))
    front.push(SeqOutput(seq, ids("c"), FinishReason.LENGTH))
    last = state.take()
    assert (last.outputs[0].text, last.outputs[0].delta, last.outputs[0].delta_ids) == ("abc", "bc", ids("bc"))
    assert last.finished and last.outputs[0].finish_reason is FinishReason.LENGTH
    assert front.updates == 3 and front.outputs.num_open == 0 and not front.outputs.requests


def test_stop_strings_cut_over_every_border(front: Front) -> None:
    text, stop = "hello END world", "END"
    for size in range(1, 8):
        state = front.open(SamplingParams(stop=(stop,), max_tokens=50))
        seq = state.seqs[0].seq_id
        aborts: list[int] = []
        shown = ""
        for at in range(0, len(text), size):
            aborts += front.push(SeqOutput(seq, ids(text[at : at + size])))
            shown += state.take().outputs[0].delta
        done = state.take().outputs[0]
        assert aborts == [seq] and shown == done.text == "hello "
        assert done.finish_reason is FinishReason.STOP and done.stop_reason == "END"
        assert done.token_ids == ids("hello END")  # usage does not depend on how steps cut the ids


def test_stop_string_in_the_last_token_needs_no_abort(front: Front) -> None:
    state = front.open(SamplingParams(stop=("b",), include_stop_str_in_output=True))
    assert front.push(SeqOutput(state.seqs[0].seq_id, ids("ab"), FinishReason.LENGTH)) == []
    done = state.take().outputs[0]
    assert (done.text, done.finish_reason, done.stop_reason) == ("ab", FinishReason.STOP, "b")


def test_held_back_text_comes_at_the_end(front: Front) -> None:
    state = front.open(SamplingParams(stop=("xyz",)))
    seq = state.seqs[0].seq_id
    front.push(SeqOutput(seq, ids("axy")))
    assert state.take().outputs[0].delta == "a"
    front.push(SeqOutput(seq, [0xE2], FinishReason.LENGTH))
    assert state.take().outputs[0].text == "axy\ufffd"


def test_min_tokens_lets_stop_strings_pass(front: Front) -> None:
    state = front.open(SamplingParams(stop=("a",), min_tokens=3))
    seq = state.seqs[0].seq_id
    assert front.push(SeqOutput(seq, ids("aaa"))) == []
    assert front.push(SeqOutput(seq, ids("ba"))) == [seq]
    assert state.take().outputs[0].text == "aaab"


def test_stop_tokens_are_kept_as_ids_and_not_as_text(front: Front) -> None:
    state = front.open(SamplingParams(stop_token_ids=(98,)))
    front.push(SeqOutput(state.seqs[0].seq_id, ids("ab"), FinishReason.STOP, stop_token=98))
    done = state.take().outputs[0]
    assert (done.text, done.token_ids, done.stop_reason) == ("a", ids("ab"), 98)
    state = front.open(SamplingParams(skip_special_tokens=False))
    front.push(SeqOutput(state.seqs[0].seq_id, [97, 257], FinishReason.STOP, stop_token=257))
    done = state.take().outputs[0]
    assert (done.text, done.token_ids, done.stop_reason) == ("a", [97, 257], None)


def test_n_ends_when_all_have(front: Front) -> None:
    state = front.open(SamplingParams(n=2))
    one, two = (s.seq_id for s in state.seqs)
    front.push(SeqOutput(one, ids("a"), FinishReason.LENGTH))
    assert not state.take().finished
    front.push(SeqOutput(two, ids("b"), FinishReason.STOP))
    out = state.take()
    assert out.finished and [c.text for c in out.outputs] == ["a", "b"] and [c.index for c in out.outputs] == [0, 1]


def test_each_of_n_answers_is_counted(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("octavo.llm.outputs.time.monotonic", lambda: now[0])
    state = front.open(SamplingParams(n=3, max_tokens=9), prompt="pq")
    one, two, three = (s.seq_id for s in state.seqs)
    front.push(SeqOutput(one, ids("a")), SeqOutput(two, ids("a")))
    now[0] += 1  # the third begins later; that is no gap
    front.push(SeqOutput(one, ids("b"), FinishReason.LENGTH), SeqOutput(two, ids("b")), SeqOutput(three, ids("a")))
    now[0] += 3
    front.push(SeqOutput(two, ids("cd"), FinishReason.STOP), SeqOutput(three, ids("b")))
    now[0] += 5
    front.push(SeqOutput(three, [], FinishReason.ERROR, error="boom"))
    metrics = front.metrics
    assert metrics.success.by_label == {"length": 1.0, "stop": 1.0, "error": 1.0}

    def told(histogram: Histogram) -> tuple[int, float]:
        return sum(histogram.counts), histogram.sum

    assert told(metrics.itl) == (5, 1 + 1 + 3 + 3), "the two tokens of a step share its gap"
    assert told(metrics.tpot) == (3, 1 + 4 / 3 + 3)
    assert told(metrics.request_answer) == (3, 2 + 4 + 2)
    assert told(metrics.request_prompt) == (1, 2) and told(metrics.request_longest) == (1, 4)
    assert told(metrics.request_n) == (1, 3) and told(metrics.request_max_tokens) == (1, 9)
    assert told(metrics.e2e) == (1, 9) and told(metrics.decode_time) == (1, 4)


def test_logprobs_follow_the_tokens(front: Front) -> None:
    def entry(token: int) -> TokenLogprobs:
        return TokenLogprobs(Logprob(token, -1.0, 1), [])

    state = front.open(SamplingParams(logprobs=0, prompt_logprobs=0, stop=("b",)), prompt="pq")
    seq = state.seqs[0].seq_id
    front.push(SeqOutput(seq, [], prompt_logprobs=[entry(113)]))
    front.push(SeqOutput(seq, ids("abc"), logprobs=[entry(t) for t in ids("abc")]))
    out = state.take()
    assert out.outputs[0].logprobs == [entry(97), entry(98)] and len(out.outputs[0].token_ids) == 2
    assert out.prompt_logprobs == [None, entry(113)]


def test_unknown_sequences_are_ignored_after_an_abort(front: Front) -> None:
    state = front.open(SamplingParams(n=2))
    one, two = (s.seq_id for s in state.seqs)
    front.push(SeqOutput(one, ids("a"), FinishReason.LENGTH))
    assert front.outputs.abort(state) == [two]
    assert front.outputs.abort(state) == []
    assert front.push(SeqOutput(two, ids("a"))) == [] and front.outputs.num_open == 0
    assert state.take().outputs[1].finish_reason is FinishReason.ABORT


def test_refusals_and_death_are_raised_to_the_consumer(front: Front) -> None:
    state = front.open(SamplingParams(n=2))
    refused = Refused(state.seqs[0].seq_id, "invalid", "never", "prompt")
    assert front.outputs.handle(Outputs([], STATS, [refused])) == [s.seq_id for s in state.seqs]
    with pytest.raises(InvalidRequest, match="never"):
        state.take()
    state = front.open(SamplingParams())
    front.outputs.fail_all(EngineDead("gone"))
    assert front.updates == 1 and front.outputs.num_open == 0
    with pytest.raises(EngineDead, match="gone"):
        state.take()


def test_errors_of_one_sequence_stay_its_own(front: Front) -> None:
    bad, good = front.open(SamplingParams()), front.open(SamplingParams())
    front.push(
        SeqOutput(bad.seqs[0].seq_id, [], FinishReason.ERROR, error="boom"),
        SeqOutput(good.seqs[0].seq_id, ids("a"), FinishReason.LENGTH),
    )
    assert bad.take().outputs[0].error == "boom" and bad.take().outputs[0].finish_reason is FinishReason.ERROR
    assert good.take().outputs[0].text == "a"
    assert front.metrics.success.by_label == {"error": 1.0, "length": 1.0}


def test_request_ids_are_unique_while_open(front: Front) -> None:
    front.outputs.open(front.intake.prepare("a", SamplingParams(), request_id="x"))
    with pytest.raises(InvalidRequest, match="in use"):
        front.outputs.open(front.intake.prepare("a", SamplingParams(), request_id="x"))


def test_deltas_join_to_the_text_however_steps_and_takes_fall(front: Front) -> None:
    rng = random.Random(5)
    for _ in range(300):
        body = [rng.choice([*range(60), 0xF0, 0x9F, 0x99, 0x82, *b"abc "]) for _ in range(rng.randrange(1, 60))]
        stops = tuple({"".join(rng.choice("ab ") for _ in range(rng.randrange(1, 4))) for _ in range(rng.randrange(3))})
        params = SamplingParams(stop=stops, max_tokens=80)
        whole, cut = front.open(params), front.open(params)
        front.push(SeqOutput(whole.seqs[0].seq_id, body, FinishReason.LENGTH))
        at, shown, shown_ids = 0, "", []
        while at < len(body):
            size = rng.randrange(1, 5)
            end = at + size >= len(body)
            front.push(SeqOutput(cut.seqs[0].seq_id, body[at : at + size], FinishReason.LENGTH if end else None))
            at += size
            if rng.random() < 0.5 or end:
                part = cut.take().outputs[0]
                shown, shown_ids = shown + part.delta, shown_ids + part.delta_ids
        a, b = whole.take().outputs[0], cut.take().outputs[0]
        assert (a.text, a.token_ids) == (b.text, b.token_ids)
        assert (a.finish_reason, a.stop_reason) == (b.finish_reason, b.stop_reason)
        assert shown == b.text and shown_ids == b.token_ids
        assert not any(s in b.text for s in stops)
