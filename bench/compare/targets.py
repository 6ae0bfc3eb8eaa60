"""What issue 4 promises beside the rivals: rows for the acceptance table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.compare.summary import Line, number
from bench.rows import Row, at_least, at_most, not_run

OURS, VLLM = "octavo", "vllm"
LIMIT_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Ratios to the best rival, and shares (percent) of our own limits."""

    w1: float
    w2: float
    w2_share: float
    w3: float
    w3_share: float
    w4: float
    gap: float = 1 / 5
    itl: float = 1 / 3


BY_SIZE = {
    "small": Targets(w1=2.5, w2=2.0, w2_share=70, w3=1.6, w3_share=75, w4=2.5),
    "half": Targets(w1=2.0, w2=1.6, w2_share=80, w3=1.5, w3_share=75, w4=2.5),
}
"""small: SmolLM2-135M; half: models of half a billion parameters."""


@dataclass(frozen=True, slots=True)
class Duel:
    """A figure that is compared. `less`: the smaller one wins."""

    load: str
    figure: str
    title: str
    unit: str
    less: bool = False


DUELS = (
    Duel("W1", "out_tok_s", "W1 output, 32 streams", "tok/s"),
    Duel("W2", "decode_tok_s", "W2 decode, one stream", "tok/s"),
    Duel("W3", "prefill_tok_s", "W3 prefill of 2,048", "tok/s"),
    Duel("W4", "seconds", "W4 shared prefix, cold", "s", less=True),
    Duel("W4warm", "seconds", "W4 shared prefix, warm", "s", less=True),
    Duel("W5", "itl_max_ms", "W5 largest gap", "ms", less=True),
    Duel("W5", "itl_p99_ms", "W5 p99 ITL", "ms", less=True),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ours beside the best rival's; `times` above 1 is a win."""

    duel: Duel
    ours: float
    theirs: float
    rival: str

    @property
    def times(self) -> float:
        return self.theirs / self.ours if self.duel.less else self.ours / self.theirs


def verdicts(lines: Sequence[Line]) -> Iterator[Verdict]:
    """Every figure that we and at least one rival have, losses too."""
    for duel in DUELS:
        if (found := best(lines, duel)) is not None:
            yield found


def best(lines: Sequence[Line], duel: Duel, *, among: str = "") -> Verdict | None:
    """Against the best rival whose name begins with `among`; None where either side has no figure."""
    ours = next((s for line in lines if line.engine == OURS and (s := line.get(duel.load, duel.figure))), None)
    rivals = [
        (s.median, line.engine)
        for line in lines
        if line.engine != OURS and line.engine.startswith(among) and (s := line.get(duel.load, duel.figure))
    ]
    if ours is None or not rivals:
        return None
    theirs, name = min(rivals) if duel.less else max(rivals)
    return Verdict(duel, ours.median, theirs, name)


def target_rows(lines: Sequence[Line], targets: Targets, section: str) -> Iterator[Row]:
    """A row for each target of one model; a figure that is missing makes it `not run`, never passed."""
    limits = {"W1": targets.w1, "W2": targets.w2, "W3": targets.w3, "W4": targets.w4, "W4warm": targets.w4}
    shares = {"W2": targets.w2_share, "W3": targets.w3_share}
    notes = " ".join(note for line in lines for note in line.notes)
    for duel in DUELS[:5]:
        limit, title = limits[duel.load], f"{duel.title}, over the best rival"
        found = best(lines, duel)
        if found is None:
            yield not_run(section, title, f">= {limit:g} x", _why(lines, duel))
        else:
            yield at_least(section, title, found.times, limit, "x", note=_beside(found, notes))
        if duel.load in shares:
            yield _share(lines, duel.load, shares[duel.load], section)
    for duel, limit in zip(DUELS[5:], (targets.gap, targets.itl), strict=True):
        title, found = f"{duel.title}, of vLLM's at one arrival rate", best(lines, duel, among=VLLM)
        if found is None:
            yield not_run(section, title, f"<= {limit:.3g} x", _why(lines, duel, among=VLLM))
        else:
            yield at_most(section, title, found.ours / found.theirs, limit, "x", note=_beside(found, notes))


def _beside(found: Verdict, notes: str) -> str:
    disturbed = "; disturbed runs among them" if "disturbed" in notes else ""
    unit = found.duel.unit
    return f"{number(found.ours)} : {number(found.theirs)} {unit}, {found.rival}{disturbed}"


def _why(lines: Sequence[Line], duel: Duel, *, among: str = "") -> str:
    ours = any(line.engine == OURS and line.get(duel.load, duel.figure) for line in lines)
    return f"no {duel.load} of {among or 'any rival'}" if ours else f"no {duel.load} of octavo"


def _share(lines: Sequence[Line], load: str, limit: float, section: str) -> Row:
    """Measured against the least time of our own Program on this machine, as `octavo explain` told beside the runs."""
    title = "W2 share of bytes over bandwidth" if load == "W2" else "W3 share of the Program's limit"
    line = next((line for line in lines if line.engine == OURS), None)
    figure, fact = ("decode_tok_s", "decode_s") if load == "W2" else ("prefill_tok_s", "prefill_s")
    rate, least = (line.get(load, figure), line.facts.get(fact)) if line else (None, None)
    if rate is None or least is None:
        return not_run(section, title, f">= {limit:g} %", f"no {load} of octavo, or no limit read beside it")
    fastest = (1 if load == "W2" else LIMIT_TOKENS) / least.median
    note = f"{number(rate.median)} of {number(fastest)} tok/s"
    return at_least(section, title, 100 * rate.median / fastest, limit, "%", note=note)
