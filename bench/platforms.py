"""What only CI does: sanitizers, another compiler, other CPUs (R03), the linters, the native stub, the docs' build.

Stages and verdicts are those of .ci/run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Context, Row, holds, not_run

STAGES: Mapping[str, tuple[str, str]] = {
    "sanitizers": ("2 Native", "op tests under ASan and UBSan"),
    "clang": ("2 Native", "builds with clang, op tests"),
    "emulated": ("2 Native", "AVX-512 variants by SIMDe: scalar's bits in every op test"),
    "haswell": ("2 Native", "a prompt on a CPU with AVX2 and no AVX-512, emulated (R03)"),
    "aarch64": ("2 Native", "scalar variant on aarch64, emulated: op tests"),
    "lint": ("10 Repository", "ruff, mypy, import-linter, deptry, clang-format"),
    "stub": ("10 Repository", "the stub of the native module is what it says"),
    "docs": ("10 Repository", "docs build with warnings as errors"),
}
"""Stage of .ci/run -> section and title of its row."""
TIMEOUT = 3 * 3600.0
"""Seconds for all of them, environments included."""
GRACE = 60.0
"""Seconds that .ci/run has to remove its temporary folder when its time is up."""
HEADER = re.compile(r"^stage +s +result$", re.MULTILINE)
LINE = re.compile(r"^(\S+) +(\d+)  (ok|skipped: .*|FAILED.*)$")


@dataclass(frozen=True, slots=True)
class Stage:
    """A line of the summary."""

    seconds: int
    result: str


def platforms(c: Context) -> Iterator[Row]:
    """Run those stages once, a row each: passed, missed, or not run for the reason that the stage gives."""
    command = [str(c.root / ".ci" / "run"), *STAGES]
    try:
        output, end = _run(command, c.root)
    except OSError as error:
        output, end = "", f"cannot be run: {error}"
    found = summary(output)
    for name in STAGES:
        yield verdict(name, found, end)


def _run(command: list[str], root: Path) -> tuple[str, str]:
    """What it printed and how it ended. Its compilers and tests end with it, in whatever way that is."""
    out, err = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(
        command, cwd=root, stdout=out, stderr=err, errors="replace", start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
            return output, f"ended with code {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                output, _ = process.communicate(timeout=GRACE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            return output, f"was ended after {TIMEOUT:.0f} s"
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise


def summary(output: str) -> dict[str, Stage]:
    """Stage -> its line of the table with which .ci/run ends; empty where there is none."""
    headers = list(HEADER.finditer(output))
    if not headers:
        return {}
    matches = map(LINE.match, output[headers[-1].end() :].splitlines())
    return {m[1]: Stage(int(m[2]), m[3].strip()) for m in matches if m}


def verdict(name: str, found: Mapping[str, Stage], end: str) -> Row:
    """`end`: how .ci/run ended, for a stage of which it says nothing."""
    section, title = STAGES[name]
    title, target = f"{title} (.ci/run {name})", "stage passes"
    stage = found.get(name)
    if stage is None:
        return not_run(section, title, target, f".ci/run {end} without a word of it")
    if stage.result.startswith("skipped: "):
        return not_run(section, title, target, stage.result.removeprefix("skipped: "))
    # A stage that fails for want of its environment has failed; the note says what failed before it.
    before = [other for other, at in found.items() if at.result.startswith("FAILED") and other not in STAGES]
    ok = stage.result == "ok"
    note = "" if ok else "; ".join([stage.result, *(f"{other} failed before" for other in before)])
    return holds(section, title, ok, target=target, value=f"{stage.seconds} s", note=note)
