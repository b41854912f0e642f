"""Plots time against size, one panel per operation and number of ranks."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from ringleader.cli.bench.bench_plan import Competitor
from ringleader.cli.bench.measurement import Results
from ringleader.cli.bench.table import size_text

# Ringleader in strong colours, the others muted; markers differ too, for readers and
# printers that cannot tell colours apart.
_LOOKS = {
    "shm": ("#1d4ed8", "o"),
    "tcp": ("#0891b2", "s"),
    "gloo": ("#ea580c", "^"),
    "mpi": ("#6b7280", "D"),
}
_INK = "#1f2937"
_PANEL_INCHES = (4.3, 3.0)
_WANTED_TICKS = 5


def save_plot(results: Results, title: str, path: Path) -> None:
    """Write a PNG of all panels, which share their axes."""
    operations, ranks = results.operations(), results.ranks()
    width = _PANEL_INCHES[0] * len(ranks) + 0.6
    height = _PANEL_INCHES[1] * len(operations) + 1.1
    figure = Figure(figsize=(max(width, 7.0), height), layout="constrained")
    FigureCanvasAgg(figure)
    panels: list[list[Axes]] = figure.subplots(
        len(operations), len(ranks), sharex=True, sharey=True, squeeze=False
    ).tolist()
    for row, operation in enumerate(operations):
        for column, count in enumerate(ranks):
            panel = panels[row][column]
            _draw_panel(panel, results, operation, count)
            panel.set_title(f"{operation}, {count} ranks", fontsize=10, loc="left")
    _label_axes(panels, results)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.suptitle(title, fontsize=11, color=_INK)
    columns = min(len(labels), 4)
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False
    )
    figure.savefig(path, dpi=140)


def _draw_panel(panel: Axes, results: Results, operation: str, ranks: int) -> None:
    cells = results.cells(ranks, operation)
    for competitor in results.competitors():
        timed = [(c.total_bytes, results.call_s(ranks, c, competitor)) for c in cells]
        points = [(size, seconds) for size, seconds in timed if seconds is not None]
        colour, mark = _LOOKS[competitor.library]
        fixed = competitor.algorithm is not None
        panel.plot(
            [size for size, _ in points],
            [seconds for _, seconds in points],
            color=colour,
            marker=None if fixed else mark,
            markersize=4.5,
            linewidth=0.8 if fixed else 1.9 if competitor.is_ours else 1.5,
            linestyle=_dashes(competitor, results),
            alpha=0.6 if fixed else 1.0,
            label=competitor.title,
        )
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.grid(visible=True, color="#e5e7eb", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8, colors=_INK)


def _dashes(
    competitor: Competitor, results: Results
) -> str | tuple[float, tuple[int, ...]]:
    """Return the line style: fixed algorithms of a transport differ in their dashes."""
    if competitor.algorithm is None:
        return "-"
    names = list(dict.fromkeys(c.algorithm for c in results.competitors()))
    position = names.index(competitor.algorithm)
    return (0.0, (1 + position, 1 + position % 3))


def _label_axes(panels: list[list[Axes]], results: Results) -> None:
    sizes = sorted({found.cell.total_bytes for found in results.all()})
    every = -(-len(sizes) // _WANTED_TICKS)
    axis = panels[0][0].xaxis
    axis.set_major_locator(FixedLocator(sizes[::every]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: size_text(int(value))))
    panels[0][0].yaxis.set_major_locator(LogLocator(base=10, numticks=12))
    panels[0][0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: _time(value)))
    for row in panels:
        row[0].set_ylabel("time per call", fontsize=9, color=_INK)
    for panel in panels[-1]:
        panel.set_xlabel("total size", fontsize=9, color=_INK)


def _time(seconds: float) -> str:
    for limit, unit in ((1e-3, "us"), (1.0, "ms")):
        if seconds < limit * 0.999:
            return f"{seconds / limit * 1000:g} {unit}"
    return f"{seconds:g} s"
