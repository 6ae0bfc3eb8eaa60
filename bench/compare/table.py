"""The comparison as Markdown: every engine's figures, then ours against the best rival, losses too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.compare.summary import Line, Spread, number
from bench.compare.targets import Targets, target_rows, verdicts

HEAD = (
    "engine",
    "weights",
    "W1 out tok/s",
    "W1 ITL p50 / p99 ms",
    "W2 decode tok/s",
    "W2 TTFT ms",
    "W3 prefill tok/s",
    "W4 cold / warm s",
    "W5 ITL p99 / largest ms",
    "start s",
    "PSS MiB",
    "perplexity",
)


def markdown(lines: Sequence[Line], targets: Targets) -> str:
    """Medians (least–most) of one model's engines."""
    if not lines:
        return "no records\n"
    parts = [f"## {lines[0].model}", "", *_rows(HEAD, (_cells(line) for line in lines)), ""]
    parts += [f"Read bandwidth beside the runs: {_bandwidth(lines)}.", ""]
    parts += [*_rows(("load", "octavo", "best rival", "", "octavo is"), _duels(lines)), ""]
    cells = ([r.name, r.value, r.target, r.status, r.note] for r in target_rows(lines, targets, ""))
    parts += [*_rows(("target", "value", "wanted", "", "note"), cells), ""]
    parts += [f"- {line.engine} {line.version}{': ' + line.caveat if line.caveat else ''}" for line in lines]
    parts += [f"- {line.engine}, {note}" for line in lines for note in line.notes]
    return "\n".join(parts) + "\n"


def _cells(line: Line) -> list[str]:
    def one(load: str, figure: str) -> str:
        found = line.get(load, figure)
        return found.text() if found else "–"

    def two(load: str, first: str, second: str) -> str:
        pair = line.get(load, first), line.get(load, second)
        return " / ".join(number(p.median) for p in pair if p) or "–"

    perplexity = line.get("quality", "perplexity")
    ttft, cold, warm = line.get("W2", "ttft_p50_s"), line.get("W4", "seconds"), line.get("W4warm", "seconds")
    return [
        line.engine,
        line.weights,
        one("W1", "out_tok_s"),
        two("W1", "itl_p50_ms", "itl_p99_ms"),
        one("W2", "decode_tok_s"),
        number(1e3 * ttft.median) if ttft else "–",
        one("W3", "prefill_tok_s"),
        f"{cold.text()} / {warm.text()}" if cold and warm else "–",
        two("W5", "itl_p99_ms", "itl_max_ms"),
        _fact(line.facts.get("start_seconds")),
        _fact(line.facts.get("pss_mib")),
        f"{perplexity.median:.3f}" if perplexity else "–",
    ]


def _fact(found: Spread | None) -> str:
    return number(found.median) if found else "–"


def _bandwidth(lines: Sequence[Line]) -> str:
    told = [f"{line.engine} {line.facts['bandwidth'].text()} GB/s" for line in lines if "bandwidth" in line.facts]
    return ", ".join(told) or "not read"


def _duels(lines: Sequence[Line]) -> Iterator[list[str]]:
    for v in verdicts(lines):
        better, worse = ("faster", "SLOWER") if v.duel.unit == "tok/s" else ("shorter", "LONGER")
        words = f"{v.times:.2f} x {better}" if v.times >= 1 else f"{1 / v.times:.2f} x {worse}"
        yield [f"{v.duel.title}, {v.duel.unit}", number(v.ours), number(v.theirs), v.rival, words]


def _rows(head: Sequence[str], cells: Iterator[Sequence[str]]) -> list[str]:
    body = [" | ".join(c.replace("|", "/") for c in row) for row in cells]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {row} |" for row in body)]
