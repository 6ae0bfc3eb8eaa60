"""Bars on a terminal: loading, and prompts done."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from octavo.llm.outputs import RequestState


class LoadingBar:
    """One bar for each phase of loading. Silent where standard error is no terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._phase = ""

    def update(self, phase: str, fraction: float) -> None:
        """`fraction` of `phase` is done."""
        if not sys.stderr.isatty():
            return
        if phase != self._phase:
            self.close()
            from tqdm import tqdm

            self._phase = phase
            shape = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
            self._bar = tqdm(total=100, desc=phase, bar_format=shape, leave=False, dynamic_ncols=True, mininterval=0)
        self._bar.update(round(100 * fraction) - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> LoadingBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GenerateBar:
    """Prompts done, and tokens a second."""

    def __init__(self, states: Sequence[RequestState], *, enabled: bool) -> None:
        self.open = list(states)
        """Those not finished at the last update."""
        self._states = states
        self._bar: Any = None
        if enabled and states:
            from tqdm import tqdm

            self._bar = tqdm(total=len(states), desc="generating", unit="prompt", dynamic_ncols=True)

    def update(self) -> None:
        """Look which have finished."""
        still = [s for s in self.open if not s.finished]
        done, self.open = len(self.open) - len(still), still
        if self._bar is not None and done:
            tokens = sum(len(q.token_ids) for s in self._states for q in s.seqs)
            elapsed = self._bar.format_dict["elapsed"] or 1e-9
            self._bar.set_postfix_str(f"{tokens / elapsed:,.0f} tok/s", refresh=False)
            self._bar.update(done)

    def __enter__(self) -> GenerateBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
