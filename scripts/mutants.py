"""Do the tests notice? Each mutant is one wrong line in a copy of the scheduler; a test or a probe must fail.

    python scripts/mutants.py            all of them: prints killed or SURVIVED, and by what; exits 1 when one survives
    python scripts/mutants.py finish     those whose name holds the word

A mutant runs in a process of its own, on a copy of the package in a temporary folder; the checkout is not touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 120

# The copy must win over an installed (also an editable) octavo: redirecting finders go first, then the path is checked.
CHILD = """
import sys
sys.meta_path = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
sys.modules.pop("octavo", None)
sys.path.insert(0, sys.argv[1] + "/src")
import octavo
assert octavo.__path__[0].startswith(sys.argv[1]), octavo.__path__
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str


def of(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"src/octavo/sched/{file}", old, new)


MUTANTS = (
    of(
        "publish skipped at finish",
        "kv.py",
        "        full = min(seq.computed, len(seq.tokens)) // self.block_size\n        for g, table",
        "        if len(seq.tokens) + 1 >= seq.limit:\n            return\n"
        "        full = min(seq.computed, len(seq.tokens)) // self.block_size\n        for g, table",
    ),
    of(
        "publish skipped at finish, with drafts",
        "results.py",
        "        if seq.computed >= seq.next_full:\n            self._kv.publish(seq, seq.last_step)\n        scores",
        "        if seq.computed >= seq.next_full and len(seq.tokens) < seq.limit:\n"
        "            self._kv.publish(seq, seq.last_step)\n        scores",
    ),
    of(
        "published when landed, not when planned",
        "scheduler.py",
        "        if seq.computed >= seq.next_full:\n            kv.publish(seq, step)\n        if not sampled:",
        "        if not sampled:",
    ),
    of(
        "admission by first chunk",
        "headroom.py",
        "need = kv.blocks_for(len(seq.tokens) + 1, start=hit.length)",
        "need = kv.blocks_for(min(len(seq.tokens) + 1, hit.length + kv.block_size), start=hit.length)",
    ),
    of(
        "admission forgets what the running are owed",
        "headroom.py",
        "return need + self._owed - kv.pool.free",
        "return need - kv.pool.free",
    ),
    of(
        "two steps of one sequence at chain 1",
        "scheduler.py",
        "if seq.inflight >= chain or seq.slot < 0:",
        "if seq.inflight > chain or seq.slot < 0:",
    ),
    of(
        "hits lost: the last block of a prefix is never looked up",
        "kv.py",
        "limit = (len(seq.tokens) - 1) // self.block_size",
        "limit = max(0, (len(seq.tokens) - 1) // self.block_size - 1)",
    ),
    of(
        "hits lost: released blocks forget their prefix",
        "block_pool.py",
        "                self.free += 1\n",
        "                self.free += 1\n                self.unpublish(block)\n",
    ),
    of(
        "the whole prompt may be hit",
        "kv.py",
        "limit = (len(seq.tokens) - 1) // self.block_size",
        "limit = len(seq.tokens) // self.block_size",
    ),
    of(
        "unknown tokens published",
        "kv.py",
        "full = min(seq.computed, len(seq.tokens)) // self.block_size\n        for g, table",
        "full = seq.computed // self.block_size\n        for g, table",
    ),
    of(
        "a hit takes no reference",
        "block_pool.py",
        "        block.refs += 1\n",
        "        block.refs = max(1, block.refs)\n",
    ),
    of(
        "an evicted block keeps its name",
        "block_pool.py",
        "                self.unpublish(block)\n                block.ready = 0",
        "                block.ready = 0",
    ),
    of("names do not chain", "prefix.py", "state.update(names[-1] if names else seq.root)", "state.update(seq.root)"),
    of("the root is left out", "prefix.py", "        state.update(root)\n", ""),
    of(
        "rejected drafts stay computed",
        "results.py",
        "            seq.computed -= rejected\n",
        "",
    ),
    of(
        "results of a lost place are taken",
        "results.py",
        "            if seq.epoch != epoch:\n                continue\n            seq.inflight -= 1",
        "            if seq.done:\n                continue\n            seq.inflight -= 1",
    ),
    of(
        "a failed step stays published",
        "results.py",
        "        self._kv.fail(flight.step)\n",
        "",
    ),
    of(
        "who hit a failed block goes on",
        "results.py",
        "self._kv.torn(seq) or self._kv.leans_on(seq, flight.step)",
        "self._kv.torn(seq)",
    ),
    of(
        "a failed step is not taken back",
        "results.py",
        "self._kv.rewind(seq, seq.computed - count)",
        "self._kv.rewind(seq, seq.computed)",
    ),
    of(
        "the first half is guilty",
        "retry.py",
        "self._groups += [members[half:], members[:half]]",
        "return members[0]",
    ),
    of(
        "a waiting sequence preempts its betters",
        "scheduler.py",
        "victims = sorted((v for v in self.running if v.key > seq.key), reverse=True)",
        "victims = sorted((v for v in self.running), reverse=True)",
    ),
    of(
        "admitted in a step that preempted",
        "scheduler.py",
        "while self._budget and self._slots and not self._preempted:",
        "while self._budget and self._slots:",
    ),
    of(
        "no turns: the queue is behind a long prompt",
        "scheduler.py",
        "                self._prompt_turn += 1\n",
        "",
    ),
    of(
        "a shared prompt is computed by everybody",
        "scheduler.py",
        "return promiser is not None and promiser.level <= seq.level",
        "return False",
    ),
    of(
        "time may leave prompts nothing",
        "allowance.py",
        "low, high = LEAST // TILE, ",
        "low, high = 0, ",
    ),
    of(
        "the target rules with nobody decoding",
        "allowance.py",
        "if self.target and decoding:",
        "if self.target:",
    ),
    of(
        "every prompt gets the least, not one a step",
        "allowance.py",
        "return bool(self.limit) and not self._fits(start, LEAST, scored=False)",
        "return False",
    ),
    of(
        "decodes in slow rows are no load",
        "scheduler.py",
        "        self._allowance.add(start, count, rows=rows)\n",
        "        if count > 1:\n            self._allowance.add(start, count, rows=rows)\n",
    ),
    of("never careful", "scheduler.py", "        self.caution.alarm()\n", ""),
    of(
        "blocks leak at an abort in flight",
        "kv.py",
        "            self.pool.release(reversed(table))\n",
        "            self.pool.release(reversed(table[: seq.computed // self.block_size + 1]))\n",
    ),
    of(
        "prompt logprobs from a cached prefix",
        "kv.py",
        "if not self.caching or seq.wants_scores:",
        "if not self.caching:",
    ),
    of(
        "windows freed by computed, not by verified",
        "kv.py",
        "            verified = min(seq.computed, len(seq.tokens))\n            first, end",
        "            verified = seq.computed\n            first, end",
    ),
    of(
        "a hit ignores blocks missing in the window",
        "groups.py",
        "            if block is None:\n                length = low\n            else:",
        "            if block is None:\n                self._found[low] = self._pool.null\n            else:",
    ),
    of("windows never free", "groups.py", "return max(0, verified - self._window + 1) // self._block_size", "return 0"),
    of(
        "windows free one position early",
        "groups.py",
        "return max(0, verified - self._window + 1) // self._block_size",
        "return max(0, verified - self._window + 2) // self._block_size",
    ),
    of(
        "windows freed while their row is planned",
        "scheduler.py",
        "idle = [other for other in self.running if other.last_step != step]",
        "idle = [other for other in self.running]",
    ),
    of("who was torn by a failure goes on", "results.py", "self._kv.torn(seq) or ", ""),
    of(
        "the pool is scanned at each step",
        "scheduler.py",
        "        self._step += 1\n",
        "        self._step += 1\n        sum(block.refs for block in self.kv.pool._blocks)\n",
    ),
)


def run(mutant: Mutant | None, python: str) -> tuple[bool, str]:
    """Whether the tests failed, and the line that says where. None runs the code as it is."""
    with tempfile.TemporaryDirectory(prefix="octavo-mutant-") as folder:
        copy = Path(folder)
        skip = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / "src", copy / "src", ignore=skip)
        shutil.copytree(ROOT / "tests" / "properties", copy / "tests" / "properties", ignore=skip)
        shutil.copytree(ROOT / "tests" / "unit" / "sched", copy / "tests" / "unit" / "sched", ignore=skip)
        (copy / "scripts").mkdir()
        shutil.copy(ROOT / "scripts" / "probes.py", copy / "scripts")
        shutil.copy(ROOT / "pyproject.toml", copy)
        if mutant is not None:
            path = copy / mutant.file
            source = path.read_text()
            if source.count(mutant.old) != 1:
                return False, f"its text occurs {source.count(mutant.old)} times in {mutant.file}: mend the mutant"
            path.write_text(source.replace(mutant.old, mutant.new))
        tests = ["tests/unit/sched", "tests/properties/test_probes.py", "tests/properties/test_schedule_invariance.py"]
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants", "--tb=line", "--no-header"]
        command = [python, "-c", CHILD, folder, *options, *tests]
        environment = {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            return True, "it never ends"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1):
        return False, f"pytest ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-200:]}"
    return done.returncode == 1, lines[0].removeprefix("FAILED ")[:110] if lines else ""


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    failed, why = run(None, sys.executable) if not words else (False, "")
    if failed or why:
        print(f"the tests fail without a mutant: {why}")
        return 1
    survived = 0

    def judge(mutant: Mutant) -> tuple[Mutant, float, bool, str]:
        begin = time.monotonic()
        killed, why = run(mutant, sys.executable)
        return mutant, time.monotonic() - begin, killed, why

    with ThreadPoolExecutor(max_workers=min(4, len(os.sched_getaffinity(0)))) as pool:
        for mutant, seconds, killed, why in pool.map(judge, chosen):
            survived += not killed
            print(f"{'killed' if killed else 'SURVIVED':<9} {seconds:5.1f} s  {mutant.name:<58} {why}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
