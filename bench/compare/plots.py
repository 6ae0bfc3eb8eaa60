"""SVG plots from the records (matplotlib: extra `compare`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.compare.summary import Line
from octavo.errors import MissingExtra

if TYPE_CHECKING:
    from bench.compare.results import Result

COLOURS = {
    "octavo": "#d1495b",
    "llama-server": "#30638e",
    "openvino": "#edae49",
    "vllm": "#00798c",
    "vllm-w8a8": "#66a182",
}
LATENCIES = (
    ("ttft_p50_s", "TTFT p50, s"),
    ("ttft_p99_s", "TTFT p99, s"),
    ("itl_p50_ms", "ITL p50, ms"),
    ("itl_p99_ms", "ITL p99, ms"),
)
BATCHED = (("decode_tok_s", "decode, tok/s"), ("prefill_tok_s", "prefill, tok/s"))
Point = tuple[float, float]
Panel = tuple[str, Callable[[Line], list[Point]]]


def draw(result: Result, folder: Path) -> list[Path]:
    """What the records hold: NAME-rates.svg, NAME-batches.svg. Raises MissingExtra."""
    figures: list[tuple[str, str, list[Panel]]] = []
    if any(points(line, "rates", "out_tok_s", "itl_p50_ms") for line in result.lines):
        panels = [(title, _rates(figure)) for figure, title in LATENCIES]
        figures.append(("rates", "output tok/s at five arrival rates", panels))
    if any(points(line, "batches", "batch", "decode_tok_s") for line in result.lines):
        panels = [(title, _batches(figure)) for figure, title in BATCHED]
        figures.append(("batches", "streams or prompts at once", panels))
    if not figures:
        return []
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra.needed_by("bench.compare plots", package="matplotlib", extra="compare") from None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "octavo"  # the same records draw the same file
    folder.mkdir(parents=True, exist_ok=True)
    return [_figure(result, panels, label, folder / f"{result.name}-{name}.svg") for name, label, panels in figures]


def points(line: Line, load: str, x: str, y: str) -> list[Point]:
    """Medians of two figures over a curve's measurements, in the order of x."""
    have = [f for name, f in line.figures.items() if name.startswith(f"{load}:") and x in f and y in f]
    return sorted((f[x].median, f[y].median) for f in have)


def _rates(figure: str) -> Callable[[Line], list[Point]]:
    return lambda line: points(line, "rates", "out_tok_s", figure)


def _batches(figure: str) -> Callable[[Line], list[Point]]:
    return lambda line: points(line, "batches", "batch", figure)


def _figure(result: Result, panels: Sequence[Panel], label: str, path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4 * ((len(panels) + 1) // 2)), layout="constrained")
    axes: Any = figure.subplots((len(panels) + 1) // 2, 2, squeeze=False)
    for (title, curve), ax in zip(panels, axes.flat, strict=True):
        for line in result.lines:
            if found := curve(line):
                xs, ys = zip(*found, strict=True)
                name = f"{line.engine} ({line.weights})"
                ax.plot(xs, ys, marker="o", markersize=4, label=name, color=COLOURS.get(line.engine))
        if label.startswith("streams"):
            ax.set_xscale("log", base=2)
        elif "TTFT" in title or "ITL" in title:
            ax.set_yscale("log")
        ax.set_xlabel(label)
        ax.set_title(title, loc="left", fontsize=10)
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    axes.flat[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    return path
