"""The memory plan: made from sizes alone, before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.config.args import EngineArgs
from octavo.errors import DoesNotFit
from octavo.facts import KVGroup, most_positions, peak_blocks
from octavo.kernels import cgroup

MIB = 1 << 20
TYPICAL_LEN = 1024
"""Positions a typical sequence holds: what the default KV pool makes room for, times max_num_seqs."""
HEADROOM = 256 * MIB
"""Left to the rest of the process and to the page cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Bytes of memory this process may use: the whole, and what is free now."""

    total: int
    available: int

    @classmethod
    def read(
        cls, *, meminfo: Path = Path("/proc/meminfo"), root: Path = cgroup.ROOT, own: Path = cgroup.OWN
    ) -> Machine:
        """From `meminfo`, narrowed by every control group that holds this process.

        `root` and `own` are those of kernels/cgroup.py.
        """
        fields: dict[str, int] = {}
        for line in meminfo.read_text().splitlines():
            name, _, rest = line.partition(":")
            fields[name] = int(rest.split()[0]) * 1024
        whole, available = fields["MemTotal"], fields.get("MemAvailable", fields["MemFree"])
        total = whole
        for limit, use in cgroup.memory_limits(root=root, own=own):
            if limit < whole:
                total, available = min(total, limit), min(available, max(0, limit - use))
        return cls(total=total, available=available)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes the model asks for, whatever the KV pool becomes."""

    weights: int
    buffers: int
    """Activations, logits and the per-slot columns."""
    block: int
    """One KV block, of whichever group."""
    groups: tuple[KVGroup, ...]
    model_len: int
    """Longest sequence the model itself supports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What will be reserved. Pages are touched as they are first used."""

    machine: Machine
    need: Need
    block_size: int
    chunk: int
    """Most positions of a sequence in one step."""
    num_blocks: int
    """Of all groups together, with the null block."""
    model_len: int
    """Longest sequence served: the model's, the user's, or what the pool holds."""
    reduced: bool
    """model_len was lowered to what the pool holds."""

    @property
    def kv(self) -> int:
        return self.num_blocks * self.need.block

    @property
    def longest(self) -> int:
        """Positions of the longest sequence that the pool holds alone."""
        groups, blocks = self.need.groups, max(0, self.num_blocks - 1)
        return most_positions(groups, blocks, block_size=self.block_size, chunk=self.chunk)

    def table(self) -> str:
        """For people: one row an item, in MiB."""
        rows = [
            ("total memory", self.machine.total),
            ("used by others", self.machine.total - self.machine.available),
            ("weights", self.need.weights),
            ("buffers", self.need.buffers),
            ("KV cache", self.kv),
        ]
        lines = [f"  {name:<16}{size / MIB:>10,.0f} MiB" for name, size in rows]
        each = f"of {self.block_size} positions, {self.need.block:,} bytes each"
        lines.append(f"  {'KV blocks':<16}{max(0, self.num_blocks - 1):>10,} {each}")
        lines.append(f"  {'longest request':<16}{min(self.longest, self.model_len):>10,} positions")
        return "\n".join(lines)


def plan_memory(args: EngineArgs, need: Need, machine: Machine) -> MemoryPlan:
    """Choose the number of KV blocks and the longest sequence.

    Raises DoesNotFit, with the table, where a wish cannot be met. What would fit is runner/advice.py's to say.
    """
    size = args.block_size
    fitting = fitting_blocks(need, machine)
    wanted_len = args.max_model_len or need.model_len
    chunk = args.step_chunk

    def peak(positions: int) -> int:
        return peak_blocks(need.groups, positions, block_size=size, chunk=chunk)

    if args.num_kv_blocks is not None:
        blocks = args.num_kv_blocks
    elif args.kv_cache_memory_bytes is not None:
        blocks = args.kv_cache_memory_bytes // need.block
    else:
        typical = args.max_num_seqs * peak(min(TYPICAL_LEN, wanted_len))
        blocks = max(typical, peak(wanted_len)) + 1
        blocks = min(blocks, max((machine.available - fixed_bytes(need)) // 2 // need.block, 0))
        if args.max_model_len is not None:
            # An explicit length may take more than half of what is free, as long as it fits.
            blocks = max(blocks, min(fitting, peak(wanted_len) + 1))
    held = most_positions(need.groups, max(0, blocks - 1), block_size=size, chunk=chunk)
    reduced = args.max_model_len is None and held < wanted_len
    plan = MemoryPlan(
        machine=machine,
        need=need,
        block_size=size,
        chunk=chunk,
        num_blocks=blocks,
        model_len=held if reduced else wanted_len,
        reduced=reduced,
    )
    if blocks > fitting:
        raise DoesNotFit(f"The model does not fit in memory.\n{plan.table()}")
    if held < wanted_len and not reduced:
        raise DoesNotFit(
            f"--max-model-len: got {wanted_len}: it takes {peak(wanted_len)} KV blocks, and there is room for "
            f"{max(0, blocks - 1)}\n{plan.table()}"
        )
    if held < 1:
        least = peak(1) + 1
        raise DoesNotFit(
            f"The KV cache holds no sequence: it takes {least} blocks ({least * need.block} bytes) or more, and there "
            f"is room for {blocks}.\n{plan.table()}"
        )
    return plan


def fixed_bytes(need: Need) -> int:
    """What is taken whatever the KV pool becomes."""
    return HEADROOM + need.weights + need.buffers


def fitting_blocks(need: Need, machine: Machine) -> int:
    """Most KV blocks, with the null block, beside weights and buffers."""
    return max(0, (machine.available - fixed_bytes(need)) // need.block)
