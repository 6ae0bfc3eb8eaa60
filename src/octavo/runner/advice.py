"""What would fit where a memory plan does not: found by planning again with other settings, before any weight is read.

A request has a useful length with 1,024 positions, or with as many as were asked for where those are fewer. What each
setting costs its user decides what is tried first:

1. nothing but a smaller KV pool, where one was asked for and the smaller one holds a useful length (all of the length
   that was asked for, where one was);
2. a useful length in steps of STEP tokens or more (--max-num-batched-tokens, --max-num-seqs);
3. a useful length in smaller steps, down to one token;
4. half the length, in steps of STEP or more, then in smaller ones; and so on, down to SHORTEST positions.

Each of 2 to 4 is tried with weights and KV as they were asked for, then with fewer bits of KV, then of weights. The
first that fits is "the largest setting": with the largest steps for that length, then the longest request for those
steps, then as much of the pool that was asked for as there is room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import msgspec

from octavo.config.args import EngineArgs
from octavo.errors import ConfigError, DoesNotFit
from octavo.facts import peak_blocks
from octavo.runner.memory import MIB, TYPICAL_LEN, Machine, MemoryPlan, Need, fitting_blocks, fixed_bytes, plan_memory

STEP = 16
"""Tokens of a step below which speed falls steeply: smaller ones are tried after it, for each length."""
SHORTEST = 16
"""Positions of a sequence below which serving a model makes no sense."""

Price = Callable[[EngineArgs], Need]
"""What a model asks for under a setting. Raises ConfigError where the model does not have the setting."""

WEIGHTS: tuple[dict[str, str], ...] = (
    {},
    {"dtype": "auto"},
    {"dtype": "bfloat16"},
    {"quantization": "int8"},
    {"dtype": "auto", "quantization": "int8"},
    {"quantization": "int4"},
    {"dtype": "auto", "quantization": "int4"},
    {"dtype": "bfloat16", "quantization": "int4"},
)
KV: tuple[dict[str, str], ...] = ({}, {"kv_cache_dtype": "bfloat16"}, {"kv_cache_dtype": "int8"})
"""Ways to store weights and KV, the most exact first. Those that save nothing are left out as they are met."""


def fit_memory(args: EngineArgs, price: Price, machine: Machine) -> MemoryPlan:
    """The plan of these arguments.

    Raises DoesNotFit where a wish cannot be met: the table, and the largest setting that fits (in the order above), as
    flags. `plan_memory` accepts those flags in place of what was asked.
    """
    need = price(args)
    if args.max_model_len is not None and args.max_model_len > need.model_len:
        raise DoesNotFit(
            f"--max-model-len: got {args.max_model_len}, allowed: up to {need.model_len}, "
            "the longest the model supports"
        )
    try:
        return plan_memory(args, need, machine)
    except DoesNotFit as error:
        raise DoesNotFit(f"{error}\n{_Search(args, price, machine).words()}") from None


@dataclass(frozen=True, slots=True)
class _Rung:
    """A way to store weights and KV."""

    args: EngineArgs
    """What was asked for, stored that way."""
    least: EngineArgs
    """The same with the smallest sizes."""
    need: Need
    """Of `least`: nothing takes less."""


class _Search:
    def __init__(self, args: EngineArgs, price: Price, machine: Machine) -> None:
        self._asked, self._price, self._machine = args, price, machine
        self._limit = args.max_model_len or price(args).model_len
        """Longest sequence that is asked for."""
        self._shortest = min(SHORTEST, self._limit)
        self._rungs = list(self._make_rungs())

    def words(self) -> str:
        found = self.largest()
        if found is not None:
            longest = plan_memory(found, self._price(found), self._machine).model_len
            return f"The largest setting that fits: {_flags(self._asked, found)} (a request of {longest} positions)."
        least = min(self._rungs, key=lambda rung: self._takes(rung, self._shortest))
        blocks = self._blocks(least, self._shortest)
        for name, size in (("num_kv_blocks", blocks), ("kv_cache_memory_bytes", blocks * least.need.block)):
            if (got := getattr(self._asked, name)) is not None and got < size:
                flags = _flags(self._asked, least.least)
                also = f", with {flags}" if flags else ""
                return f"--{name.replace('_', '-')}: got {got}, allowed: {size} or more{also}"
        takes, free = -(-self._takes(least, self._shortest) // MIB), max(0, self._machine.available) // MIB
        return (
            f"No setting fits: with {_flags(self._asked, least.least)} it would take {takes:,} MiB, and {free:,} MiB "
            "are available. Use a smaller model, or a machine with more memory."
        )

    def largest(self) -> EngineArgs | None:
        """In the module's order; None where nothing fits."""
        useful = min(TYPICAL_LEN, self._limit)
        if (found := self._smaller_pool(self._asked, useful)) is not None:
            return found
        targets = [useful]
        while targets[-1] > self._shortest:
            targets.append(max(targets[-1] // 2, self._shortest))
        steps = (min(STEP, self._asked.step_tokens), 1)
        for target, tokens in product(targets, steps):
            for rung in self._rungs:
                if self._takes(rung, target) > self._machine.available:
                    continue  # known without planning: most rungs end here
                if self._accepts(self._sized(rung.args, tokens, target)):
                    return self._grown(rung.args, tokens, target)
        return None

    # -- what may vary ------------------------------------------------------------------------------------------------
    def _make_rungs(self) -> Iterator[_Rung]:
        """Ever fewer bits. What saves nothing beside an earlier rung is left out."""
        met: set[EngineArgs] = set()
        seen: list[Need] = []
        for weights in WEIGHTS:
            for kv in KV:
                try:
                    args = msgspec.structs.replace(self._asked, **weights, **kv)
                    if args in met:
                        continue
                    met.add(args)
                    least = self._sized(args, 1, self._shortest)
                    need = self._price(least)
                except ConfigError:  # not with this model, or not together
                    continue
                if all(need.weights < other.weights or need.block < other.block for other in seen):
                    seen.append(need)
                    yield _Rung(args, least, need)

    def _sized(self, args: EngineArgs, tokens: int, length: int) -> EngineArgs:
        """With another step and length, and whatever pool those take."""
        same = tokens == self._asked.step_tokens
        return msgspec.structs.replace(
            args,
            max_num_batched_tokens=self._asked.max_num_batched_tokens if same else tokens,
            max_num_seqs=min(self._asked.max_num_seqs, tokens),
            max_model_len=length,
            num_kv_blocks=None,
            kv_cache_memory_bytes=None,
        )

    def _takes(self, rung: _Rung, length: int) -> int:
        """Bytes of one sequence beside the smallest buffers."""
        return fixed_bytes(rung.need) + self._blocks(rung, length) * rung.need.block

    def _blocks(self, rung: _Rung, length: int) -> int:
        """Those of one sequence, and the null block."""
        size, chunk = rung.least.block_size, rung.least.step_chunk
        return peak_blocks(rung.need.groups, length, block_size=size, chunk=chunk) + 1

    # -- how far ------------------------------------------------------------------------------------------------------
    def _accepts(self, args: EngineArgs) -> bool:
        """Whether the pool holds `max_model_len`. A pool that was asked for is not exceeded."""
        need, asked = self._price(args), self._asked
        pool = fitting_blocks(need, self._machine)
        if asked.num_kv_blocks is not None:
            pool = min(pool, asked.num_kv_blocks)
        elif asked.kv_cache_memory_bytes is not None:
            pool = min(pool, asked.kv_cache_memory_bytes // need.block)
        assert args.max_model_len is not None
        return peak_blocks(need.groups, args.max_model_len, block_size=args.block_size, chunk=args.step_chunk) < pool

    def _grown(self, args: EngineArgs, step: int, target: int) -> EngineArgs:
        """From sizes that fit to the largest that do: the step, the length, the pool."""
        tokens = _last(step, self._asked.step_tokens, lambda t: self._accepts(self._sized(args, t, target)))
        length = _last(target, self._limit, lambda n: self._accepts(self._sized(args, tokens, n)))
        found = self._sized(args, tokens, length)
        pool = {name: getattr(self._asked, name) for name in ("num_kv_blocks", "kv_cache_memory_bytes")}
        return self._smaller_pool(msgspec.structs.replace(found, **pool), target) or found

    def _smaller_pool(self, args: EngineArgs, target: int) -> EngineArgs | None:
        """With as much as fits of the pool that was asked for; None where none was, or that holds no `target`."""
        need = self._price(args)
        pool = fitting_blocks(need, self._machine)
        if args.num_kv_blocks is not None:
            args = msgspec.structs.replace(args, num_kv_blocks=max(2, min(pool, args.num_kv_blocks)))
        elif args.kv_cache_memory_bytes is not None:
            most = max(1, min(pool * need.block, args.kv_cache_memory_bytes))
            args = msgspec.structs.replace(args, kv_cache_memory_bytes=most)
        else:
            return None
        try:
            plan = plan_memory(args, need, self._machine)
        except DoesNotFit:
            return None
        return args if min(plan.longest, self._limit) >= target else None


def _last(low: int, high: int, good: Callable[[int], bool]) -> int:
    """The largest number in [low, high] that is good, where `low` is and what is good ends once."""
    if good(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def _flags(asked: EngineArgs, found: EngineArgs) -> str:
    """What differs, as one would type it, in the order of EngineArgs."""
    values = {name: getattr(found, name) for name in asked.__struct_fields__}
    changed = {name: value for name, value in values.items() if value not in (None, getattr(asked, name))}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changed.items())
