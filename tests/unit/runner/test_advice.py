"""A memory refusal's advice (R05, R06): it fits, it is the largest, and what costs least is given up first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from octavo.config.args import EngineArgs
from octavo.errors import ConfigError, DoesNotFit
from octavo.facts import KVGroup, peak_blocks
from octavo.runner.advice import SHORTEST, STEP, fit_memory
from octavo.runner.loader import plan_model
from octavo.runner.memory import HEADROOM, MIB, TYPICAL_LEN, Machine, MemoryPlan, Need, plan_memory
from octavo.weights.checkpoint import open_checkpoint
from tests.tiny import write_tiny

FULL = (KVGroup(name="full", kind="full", layers=1),)


@dataclass(frozen=True)
class Model:
    """A made-up model, whose sizes follow the settings as a real one's do."""

    weights: int = 1000
    """MiB at 16 bits."""
    floats: bool = True
    token: int = MIB
    """Bytes of buffers for each token of a step."""
    column: int = 4
    """Bytes for each sequence and position."""
    block: int = MIB
    groups: tuple[KVGroup, ...] = FULL
    model_len: int = 8192

    def price(self, args: EngineArgs) -> Need:
        bits = {None: 16, "int8": 9, "int4": 5}[args.quantization]
        if args.quantization and (not self.floats or args.dtype == "float32"):
            raise ConfigError("--quantization")
        if args.dtype == "float32":
            bits = 32
        kv = args.kv_cache_dtype
        if kv == "auto":
            kv = "float32" if args.dtype == "float32" else "bfloat16"
        length = args.max_model_len or self.model_len
        return Need(
            weights=self.weights * MIB * bits // 16,
            buffers=args.step_tokens * self.token + args.max_num_seqs * length * self.column,
            block=self.block * {"float32": 32, "bfloat16": 16, "int8": 9}[kv] // 16,
            groups=self.groups,
            model_len=self.model_len,
        )

    def plan(self, args: EngineArgs, available: int) -> MemoryPlan:
        return plan_memory(args, self.price(args), machine(available))

    def advice(self, available: int, **wishes: Any) -> dict[str, Any] | None:
        """Of the refusal: field -> value."""
        with pytest.raises(DoesNotFit) as caught:
            fit_memory(EngineArgs(model="m", **wishes), self.price, machine(available))
        return flags(str(caught.value))


def flags(text: str) -> dict[str, Any] | None:
    """Of a refusal's largest setting: field -> value; None where it names none."""
    said = re.search(r"The largest setting that fits: (.+) \(a request", text)
    if said is None:
        assert re.search("No setting fits|allowed: .* or more", text), text
        return None
    words = said[1].replace("--", "").replace("-", "_").split()
    return {n: int(v) if v.isdigit() else v for n, v in zip(words[::2], words[1::2], strict=True)}


def machine(available: int) -> Machine:
    return Machine(total=2 * available, available=available)


def left(model: Model, beside: int) -> int:
    """A machine with so many MiB beside the weights at 16 bits, for buffers and KV."""
    return HEADROOM + (model.weights + beside) * MIB


def test_the_smallest_pool_is_said_with_the_settings_it_needs() -> None:
    model = Model()
    with pytest.raises(DoesNotFit, match=r"--kv-cache-memory-bytes: got 1, allowed: \d+ or more, with --") as caught:
        fit_memory(EngineArgs(model="m", kv_cache_memory_bytes=1), model.price, machine(left(model, 500)))
    line = str(caught.value).splitlines()[-1]
    words = line.replace("got 1, allowed: ", "").replace(" or more, with", "").replace("bytes:", "bytes").split()
    wishes: dict[str, Any] = {
        name.removeprefix("--").replace("-", "_"): int(value) if value.isdigit() else value
        for name, value in zip(words[::2], words[1::2], strict=True)
    }
    asked = EngineArgs(model="m", **wishes)
    assert fit_memory(asked, model.price, machine(left(model, 500))).kv <= asked.kv_cache_memory_bytes


def test_smaller_steps_come_first_for_they_cost_speed_alone() -> None:
    """200 MiB: a request of 1,024 positions takes 65 blocks, and 256 tokens of a step 256 MiB."""
    found = Model().advice(left(Model(), 200))
    assert found is not None and set(found) - {"max_num_seqs"} == {"max_model_len", "max_num_batched_tokens"}
    assert found["max_model_len"] >= TYPICAL_LEN
    assert 100 < found["max_num_batched_tokens"] < 200


def test_then_fewer_bits_of_kv_and_then_of_weights() -> None:
    model = Model()
    assert set(model.advice(left(model, 70)) or {}) >= {"kv_cache_dtype", "max_model_len"}
    found = model.advice(left(model, 10))
    assert found is not None and found["quantization"] == "int8" and "kv_cache_dtype" not in found
    found = model.advice(left(model, -500))
    assert found is not None and found["quantization"] == "int4"
    exact = model.advice(left(model, 400), dtype="float32")
    assert exact is not None and exact["dtype"] == "auto" and "quantization" not in exact


def test_16_bits_of_kv_come_before_8() -> None:
    """A request of 1,024 positions takes 65 blocks: of 2 MiB as float32, of 1 MiB as bfloat16."""
    model = Model()
    found = model.advice(left(model, 100), kv_cache_dtype="float32")
    assert found is not None and found["kv_cache_dtype"] == "bfloat16" and "quantization" not in found
    exact = Model(weights=500)  # 1,000 MiB as float32
    found = exact.advice(HEADROOM + 1100 * MIB, dtype="float32")
    assert found is not None and found["kv_cache_dtype"] == "bfloat16" and "dtype" not in found
    assert "kv_cache_dtype" not in (model.advice(left(model, 10), kv_cache_dtype="int8") or {})


def test_a_useful_length_comes_before_large_steps_and_those_before_a_longer_one() -> None:
    """50 MiB: 1,024 positions take 32.5 of them, which leaves room for 8 tokens of a step at 2 MiB each."""
    model = Model(floats=False, block=MIB // 2, token=2 * MIB, column=0)
    found = model.advice(left(model, 50))
    assert found is not None
    assert "kv_cache_dtype" not in found, "16 tokens of a step and 8-bit KV take 50.3 MiB"
    assert found["max_num_batched_tokens"] == 8
    assert TYPICAL_LEN <= found["max_model_len"] < TYPICAL_LEN + 64
    assert not fits(
        model,
        EngineArgs(model="m", max_num_seqs=8, max_num_batched_tokens=9, max_model_len=TYPICAL_LEN),
        left(model, 50),
    )


def test_a_short_request_where_no_useful_one_fits() -> None:
    model = Model(floats=False)
    found = model.advice(left(model, 24))
    assert found is not None and SHORTEST <= found["max_model_len"] < TYPICAL_LEN
    assert found["max_num_seqs"] <= found["max_num_batched_tokens"]


def test_what_no_setting_mends_is_said_with_the_least_that_is_needed() -> None:
    model = Model()
    least = HEADROOM // MIB + model.weights * 5 // 16 + 1 + 2  # one token's buffers; a block and the null block
    available = HEADROOM + 100 * MIB
    with pytest.raises(DoesNotFit) as caught:
        fit_memory(EngineArgs(model="m"), model.price, machine(available))
    said = re.search(
        r"No setting fits: with (.*) it would take ([\d,]+) MiB, and 356 MiB are available", str(caught.value)
    )
    assert said is not None and "--quantization int4" in said[1] and "--max-num-seqs 1" in said[1]
    assert least - 2 <= int(said[2].replace(",", "")) <= least
    enough = int(said[2].replace(",", "")) * MIB
    assert model.advice(enough) is not None
    assert model.advice(enough - 2 * MIB) is None


@pytest.mark.parametrize("beside", [-1, 0, 1, 2, 3])
def test_a_real_model_takes_its_advice(tmp_path: Path, beside: int) -> None:
    """Of a checkpoint, through the flags of the message, at some MiB beside its weights."""
    path = write_tiny(tmp_path, "llama")
    checkpoint = open_checkpoint(path)
    asked = EngineArgs(model=str(path), max_num_batched_tokens=4096)
    weights = plan_model(asked, checkpoint, machine=machine(2**40)).spec.weights_bytes
    tight = machine(HEADROOM + weights + beside * MIB)
    with pytest.raises(DoesNotFit) as caught:
        plan_model(asked, checkpoint, machine=tight)
    if beside < 0:
        assert "No setting fits" in str(caught.value)
        return
    found = flags(str(caught.value))
    assert found is not None, str(caught.value)
    taken = plan_model(msgspec.structs.replace(asked, **found), checkpoint, machine=tight)
    assert taken.memory.model_len >= SHORTEST


WINDOWS = (*FULL, KVGroup(name="w", kind="sliding", layers=1, window=512))
MODELS = st.builds(
    Model,
    weights=st.integers(1, 4000),
    floats=st.booleans(),
    token=st.integers(1, 4 * MIB),
    column=st.integers(0, 64),
    block=st.integers(1 << 12, 4 * MIB),
    groups=st.sampled_from([FULL, WINDOWS]),
    model_len=st.integers(1, 100_000),
)


@settings(max_examples=400)
@given(
    model=MODELS,
    share=st.floats(0, 1.5),
    beside=st.integers(0, 200) | st.integers(0, 3000),
    dtype=st.sampled_from(["auto", "float32"]),
    kv=st.sampled_from(["auto", "float32"]),
    seqs=st.integers(1, 300),
    tokens=st.none() | st.integers(300, 2048),
    length=st.none() | st.integers(1, 1 << 17),
    pool=st.none() | st.integers(2, 4000),
    size=st.none() | st.integers(1, 2**33),
)
def test_advice_fits_and_nothing_larger_does(
    model: Model,
    share: float,
    beside: int,
    dtype: Any,
    kv: Any,
    seqs: int,
    tokens: int | None,
    length: int | None,
    pool: int | None,
    size: int | None,
) -> None:
    asked = EngineArgs(
        model="m",
        dtype=dtype,
        kv_cache_dtype=kv,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=None if length is None else min(length, model.model_len),
        num_kv_blocks=pool,
        kv_cache_memory_bytes=None if pool else size,
    )
    available = HEADROOM + int(share * model.weights) * MIB + beside * MIB
    try:
        model.plan(asked, available)
        event("fits as it is")
        return
    except DoesNotFit:
        pass
    found = model.advice(available, **{n: getattr(asked, n) for n in asked.__struct_fields__ if n != "model"})
    limit = asked.max_model_len or model.model_len
    useful = min(TYPICAL_LEN, limit)

    def holds(tokens: int, length: int) -> bool:
        """Some way to store weights and KV does, in steps of so many tokens, in no more than the pool asked for."""
        ways = stored(asked, tokens, length)
        return any(fits(model, way, available) and not exceeds(model, way, asked) for way in ways)

    if found is None:
        event("nothing fits")
        assert not holds(1, min(SHORTEST, limit))
        return
    event(", ".join(found))
    taken = msgspec.structs.replace(asked, **found)
    accepted = model.plan(taken, available)
    step, longest = taken.step_tokens, min(accepted.longest, accepted.model_len)
    assert longest >= 1, "the advice is accepted"
    if longest < useful:
        event(f"shorter than useful, steps of {'fewer' if step < STEP else 'STEP or more'}")
        assert not any(holds(tokens, useful) for tokens in (1, 4, 8, STEP))
    elif step < min(STEP, asked.step_tokens):
        event("useful, in steps smaller than STEP")
        assert not holds(min(STEP, asked.step_tokens), useful)
    unpooled = msgspec.structs.replace(taken, num_kv_blocks=None, kv_cache_memory_bytes=None)
    if "max_model_len" in found and found["max_model_len"] < limit:
        longer = msgspec.structs.replace(unpooled, max_model_len=found["max_model_len"] + 1)
        assert not fits(model, longer, available) or exceeds(model, longer, asked)
    if "max_num_batched_tokens" in found:
        step = found["max_num_batched_tokens"] + 1
        larger = msgspec.structs.replace(
            unpooled,
            max_num_batched_tokens=step,
            max_num_seqs=min(asked.max_num_seqs, step),
            max_model_len=max(taken.max_model_len or 0, min(TYPICAL_LEN, limit)),
        )
        assert not fits(model, larger, available) or exceeds(model, larger, asked)
    if "num_kv_blocks" in found:
        assert not fits(model, msgspec.structs.replace(taken, num_kv_blocks=found["num_kv_blocks"] + 1), available)


def fits(model: Model, args: EngineArgs, available: int) -> bool:
    try:
        return model.plan(args, available).longest >= 1
    except (DoesNotFit, ConfigError):
        return False


def exceeds(model: Model, args: EngineArgs, asked: EngineArgs) -> bool:
    """Whether the longest sequence of `args` takes more than the pool that was asked for."""
    need = model.price(args)
    pool = asked.num_kv_blocks or (asked.kv_cache_memory_bytes or 2**60) // need.block
    assert args.max_model_len is not None
    return peak_blocks(need.groups, args.max_model_len, block_size=16, chunk=args.step_chunk) + 1 > pool


def stored(asked: EngineArgs, tokens: int, length: int) -> Iterator[EngineArgs]:
    """Steps of so many tokens and sequences of that length, in whatever pool, stored in every way."""
    for dtype, quantization, kv in product((asked.dtype, "auto"), (None, "int8", "int4"), ("auto", "bfloat16", "int8")):
        if dtype == "float32" and kv == "int8":
            continue  # no such arguments
        yield msgspec.structs.replace(
            asked,
            dtype=dtype,
            quantization=quantization,
            kv_cache_dtype=kv,
            max_num_seqs=min(asked.max_num_seqs, tokens),
            max_num_batched_tokens=tokens,
            max_model_len=length,
            num_kv_blocks=None,
            kv_cache_memory_bytes=None,
        )
