"""Do the tests notice? Each mutant is one wrong line in a copy of the scheduler; a test or a probe must fail.

    python scripts/mutants.py            all of them: prints the verdict on each, and what killed it
    python scripts/mutants.py finish     those whose name holds the word

A mutant runs in a process of its own, on a copy of the package in a temporary folder; the checkout is not touched.

The unmutated code runs first, and alone: its tests must pass within UNMUTATED seconds, and a mutant's may take FACTOR
times as long and SLACK seconds more. Verdicts: `killed`, a test failed; `SURVIVED`, none did; `HUNG`, they were still
running at the limit; `BROKEN`, the mutant's text is not in its file exactly once, or pytest could not run.

Only `killed` passes. A mutant that hangs is not killed: no test has said what is wrong, and a busy machine or a test
that grew slow looks the same. The tests bound their steps themselves (MAX_STEPS, "no progress"), so that a scheduler
that stands still fails in seconds; a mutant that hangs all the same asks for such a bound.
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
FACTOR, SLACK = 5.0, 10.0
"""Of a mutant's limit: times the unmutated run, and seconds. Several mutants run at once, beside whatever else does."""
UNMUTATED = 600.0
"""Seconds for the unmutated run: tests that hang without a mutant must end too."""

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


@dataclass(frozen=True)
class Run:
    """How the tests ended on a copy. `code` is pytest's; None: they were still running at the limit."""

    code: int | None
    seconds: float
    why: str = ""

    @property
    def verdict(self) -> str:
        return {0: "SURVIVED", 1: "killed", None: "HUNG"}.get(self.code, "BROKEN")


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
        "preempt.py",
        "victims = sorted((v for v in running if v.key > seq.key), reverse=True)",
        "victims = sorted((v for v in running), reverse=True)",
    ),
    of(
        "admitted in a step that preempted",
        "scheduler.py",
        "while self._budget and self._places.free and not self.preemption.happened:",
        "while self._budget and self._places.free:",
    ),
    of(
        "no turns: the queue is behind a long prompt",
        "scheduler.py",
        "                self._prompt_turn += 1\n",
        "",
    ),
    of(
        "a shared prompt is computed by everybody",
        "prefix.py",
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
    of("never careful", "preempt.py", "        self._caution.alarm()\n", ""),
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
    Mutant(
        "windows never free",
        "src/octavo/facts.py",
        "return max(0, verified - self.window + 1) // self.block_size",
        "return 0",
    ),
    Mutant(
        "windows free one position early",
        "src/octavo/facts.py",
        "return max(0, verified - self.window + 1) // self.block_size",
        "return max(0, verified - self.window + 2) // self.block_size",
    ),
    of(
        "windows freed while their row is planned",
        "preempt.py",
        "idle = [other for other in self._places.running if other.last_step != step]",
        "idle = [other for other in self._places.running]",
    ),
    of("who was torn by a failure goes on", "results.py", "self._kv.torn(seq) or ", ""),
    of(
        "the pool is scanned at each step",
        "scheduler.py",
        "        self._step += 1\n",
        "        self._step += 1\n        sum(block.refs for block in self.kv.pool._blocks)\n",
    ),
    of(
        "a trial without room is given up",
        "scheduler.py",
        "if not self.preemption.clear_the_way(group):",
        "if group:",
    ),
)


def mutated(source: str, mutant: Mutant) -> str:
    """Raises ValueError unless the mutant's text is there exactly once."""
    if source.count(mutant.old) != 1:
        raise ValueError(f"its text occurs {source.count(mutant.old)} times in {mutant.file}: mend the mutant")
    return source.replace(mutant.old, mutant.new)


def run(mutant: Mutant | None, python: str, limit: float) -> Run:
    """Run the tests on a copy with the mutant in it (None: the code as it is), for at most `limit` seconds."""
    with tempfile.TemporaryDirectory(prefix="octavo-mutant-") as folder:
        copy = Path(folder)
        skip = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / "src", copy / "src", ignore=skip)
        shutil.copytree(ROOT / "tests" / "properties", copy / "tests" / "properties", ignore=skip)
        shutil.copytree(ROOT / "tests" / "unit" / "sched", copy / "tests" / "unit" / "sched", ignore=skip)
        shutil.copytree(ROOT / "bench" / "probes", copy / "bench" / "probes", ignore=skip)
        shutil.copy(ROOT / "bench" / "__init__.py", copy / "bench")
        shutil.copy(ROOT / "pyproject.toml", copy)
        if mutant is not None:
            path = copy / mutant.file
            try:
                path.write_text(mutated(path.read_text(), mutant))
            except ValueError as error:
                return Run(-1, 0.0, str(error))
        tests = ["tests/unit/sched", "tests/properties/test_probes.py", "tests/properties/test_schedule_invariance.py"]
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants", "--tb=line", "--no-header"]
        # The limit here is the only one: pytest's own would end a hanging test as if it had failed.
        command = [python, "-c", CHILD, folder, *options, "--timeout=0", *tests]
        environment = {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
        begin = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired as error:
            return Run(None, error.timeout, f"still running after {error.timeout:.0f} s")
        seconds = time.monotonic() - begin
    if done.returncode not in (0, 1):
        said = (done.stdout + done.stderr).strip()[-200:]
        return Run(done.returncode, seconds, f"pytest ended with {done.returncode}: {said}")
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return Run(done.returncode, seconds, lines[0].removeprefix("FAILED ")[:110] if lines else "")


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    if not chosen:
        print(f"no mutant's name holds any of: got {words}, allowed: {', '.join(m.name for m in MUTANTS)}")
        return 2
    usual = run(None, sys.executable, UNMUTATED)
    if usual.code is None:
        print(f"the tests are {usual.why} without a mutant, which is the limit")
        return 1
    if usual.code:
        print(f"the tests fail without a mutant: {usual.why}")
        return 1
    limit = FACTOR * usual.seconds + SLACK
    print(f"without a mutant {usual.seconds:.1f} s; with one at most {limit:.0f} s", flush=True)
    killed = 0
    with ThreadPoolExecutor(max_workers=min(4, len(os.sched_getaffinity(0)))) as pool:
        runs = pool.map(lambda mutant: run(mutant, sys.executable, limit), chosen)
        for mutant, ended in zip(chosen, runs, strict=True):
            killed += ended.verdict == "killed"
            print(f"{ended.verdict:<9} {ended.seconds:5.1f} s  {mutant.name:<58} {ended.why}", flush=True)
    print(f"{killed} of {len(chosen)} killed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
