"""Figures as text: one load as a page, several as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.bench.sweep import Point

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}


def number(value: float | None, *, digits: int = 1) -> str:
    """A dash for what has no value."""
    return "-" if value is None else f"{value:,.{digits}f}"


def table(rows: Sequence[Sequence[str]], *, indent: int = 2) -> str:
    """Columns to the right, but the first; the first row is the head."""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [f"{row[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True))]
        lines.append(" " * indent + "  ".join(cells).rstrip())
    return "\n".join(lines)


def page(point: Point, f: Mapping[str, Any], *, metrics: Sequence[str], percentiles: Sequence[float]) -> str:
    """One load, whole."""
    rates = [
        ["request throughput", number(f["request_throughput"], digits=2), "requests/s"],
        ["output throughput", number(f["output_throughput"]), "tok/s"],
        ["total throughput", number(f["total_token_throughput"]), "tok/s"],
    ]
    if f["request_goodput"] is not None:
        rates.insert(1, ["request goodput", number(f["request_goodput"], digits=2), "requests/s"])
    counts = (
        f"{f['completed']} completed, {f['failed']} failed in {f['duration']:.2f} s; "
        f"{f['total_input_tokens']:,} tokens in ({f['cached_tokens']:,} of them cached), "
        f"{f['total_output_tokens']:,} out"
    )
    marks = [f"p{q:g}" for q in percentiles]
    rows = [["ms", "mean", "median", *marks, "max"]]
    for name in metrics:
        keys = ["mean", "median", *marks, "max"]
        rows.append([NAMES[name], *(number(f[f"{key}_{name}_ms"]) for key in keys)])
    parts = [point.words, f"  {counts}", table(rates), table(rows), *notes(f)]
    return "\n".join(parts)


def notes(f: Mapping[str, Any]) -> list[str]:
    """What a reader must know before believing the figures."""
    found = [f"  failed: {count} x {error}" for error, count in f["errors"].items()]
    if f["short_answers"]:
        found.append(f"  note: {f['short_answers']} answers are shorter than asked for")
    if f["completed"] and f["events_per_token"] < 0.95:
        per = 1 / max(1e-9, f["events_per_token"])
        found.append(f"  note: the server sends {per:.2f} tokens an event: ITL is the gap between events")
    if f["max_client_wait_ms"] > 50:
        found.append(f"  note: a request was sent {f['max_client_wait_ms']:,.0f} ms late: the loop was not fully open")
    return found


def sweep_table(points: Sequence[Point], figures: Sequence[Mapping[str, Any]]) -> str:
    """A line a load."""
    head = ["rate", "at once", "done", "failed", "req/s", "good/s", "out tok/s", "TTFT p50", "TTFT p99", "TPOT p50"]
    rows = [[*head, "ITL p50", "ITL p99", "ITL max", "E2EL p50", "cached"]]
    for point, f in zip(points, figures, strict=True):
        rows.append(
            [
                f"{point.request_rate:g}",
                "-" if point.max_concurrency is None else str(point.max_concurrency),
                str(f["completed"]),
                str(f["failed"]),
                number(f["request_throughput"], digits=2),
                number(f["request_goodput"], digits=2),
                number(f["output_throughput"]),
                *(number(f.get(key)) for key in ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms")),
                *(number(f.get(key)) for key in ("median_itl_ms", "p99_itl_ms", "max_itl_ms", "median_e2el_ms")),
                f"{f['cached_tokens']:,}",
            ]
        )
    return table(rows)
