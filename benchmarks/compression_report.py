"""Plots the records of benchmarks/compression.py and prints tables for the docs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

INK = "#1f2937"
COLOURS = {
    "gloo": "#ea580c",
    "plain": "#6b7280",
    "bf16": "#0891b2",
    "fp16": "#67c3d6",
    "int8": "#1d4ed8",
    "onebit": "#7c3aed",
    "topk": "#059669",
    "randomk": "#a3e635",
    "powersgd": "#be185d",
    "auto": "#111827",
    "alone": "#d1d5db",
}
NAMES = {"gloo": "Gloo", "plain": "uncompressed", "alone": "no communication"}
PLACES = {
    "100mbit": "100 Mbit/s",
    "1gbit": "1 Gbit/s",
    "10gbit": "10 Gbit/s",
    "loopback": "loopback",
    "shm": "shared memory",
}

Record = dict[str, Any]


def save_plot(records: Path, path: Path) -> None:
    """Write a PNG with bytes, times, steps per second, and loss over time."""
    found = latest(records)
    figure = Figure(figsize=(13.0, 8.2), layout="constrained")
    FigureCanvasAgg(figure)
    draws = {
        "bytes": draw_bytes,
        "time": partial(
            draw_speeds, part="time", title="all_reduce, times Gloo's speed"
        ),
        "ddp": partial(
            draw_speeds, part="ddp", title="DDP steps per second, times Gloo's"
        ),
        "clock": draw_race,
    }
    parts = [part for part in draws if any(some(found, part))]
    rows = -(-len(parts) // 2)
    panels: list[Axes] = list(figure.subplots(rows, 2, squeeze=False).flat)
    for part, panel in zip(parts, panels, strict=False):
        draws[part](panel, found)
    for panel in panels[len(parts) :]:
        panel.set_visible(False)
    machine = found[-1]["machine"]
    what = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}"
    figure.suptitle(f"{records.stem}: {what}", fontsize=11, color=INK)
    figure.savefig(path, dpi=130)


def latest(path: Path) -> list[Record]:
    """Return the last record of each measurement, in the order of the file."""
    found: dict[tuple[object, ...], Record] = {}
    keys = ("part", "place", "source", "task", "scheme", "seed", "bar")
    for line in path.read_text().splitlines():
        record: Record = json.loads(line)
        key = tuple(record.get(name) for name in keys)
        found.pop(key, None)
        found[key] = record
    return list(found.values())


def some(found: list[Record], part: str, **wanted: str) -> Iterator[Record]:
    """Return the measurements of one part, without the comparisons with limits."""
    for record in found:
        is_figure = record["part"] == part and "bar" not in record
        if is_figure and all(record.get(key) == value for key, value in wanted.items()):
            yield record


def draw_bytes(panel: Axes, found: list[Record]) -> None:
    """Plot the bytes that leave a host, for both kinds of gradients."""
    kinds = {"noise": "64 MiB of noise", "gradients": "a transformer's gradients"}
    for shift, (source, title) in enumerate(kinds.items()):
        records = list(some(found, "bytes", source=source))
        places = [place + 0.4 * shift - 0.2 for place in range(len(records))]
        fewer = [record["fewer"] for record in records]
        colours = [colour(record["scheme"]) for record in records]
        bars = panel.barh(
            places, fewer, 0.38, color=colours, alpha=1 - 0.45 * shift, label=title
        )
        panel.bar_label(bars, [f" {each:.3g}" for each in fewer], fontsize=7)
    records = list(some(found, "bytes", source="noise"))
    names = [name(record["scheme"]) for record in records]
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_xscale("log")
    title = (
        "times fewer bytes at the interface, 4 hosts (pale: a real model's gradients)"
    )
    finish(panel, title)


def draw_speeds(panel: Axes, found: list[Record], part: str, title: str) -> None:
    """Plot the speed of every scheme relative to Gloo, per environment."""
    records = list(some(found, part))
    schemes = list(dict.fromkeys(record["scheme"] for record in records))
    places = [each for each in PLACES if any(r["place"] == each for r in records)]
    width = 0.85 / max(1, len(schemes))
    for number, scheme in enumerate(schemes):
        mine = {
            r["place"]: r["faster_than_gloo"]
            for r in some(records, part, scheme=scheme)
        }
        heights = [mine.get(place, 0.0) for place in places]
        left = [at + (number + 0.5) * width - 0.425 for at in range(len(places))]
        bars = panel.bar(left, heights, width, color=colour(scheme), label=name(scheme))
        labels = [f"{height:.2g}" for height in heights]
        panel.bar_label(bars, labels, fontsize=5.5, rotation=90, padding=2)
    panel.set_xticks(range(len(places)), [PLACES[place] for place in places])
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.axhline(1.0, color=INK, linewidth=0.7)
    panel.margins(y=0.15)
    panel.legend(fontsize=7, frameon=False, ncols=2)
    finish(panel, title)


def draw_race(panel: Axes, found: list[Record]) -> None:
    """Plot the loss over time on the slow network."""
    for record in some(found, "clock", place="100mbit"):
        losses = smooth(record["losses"])
        panel.plot(
            record["seconds"][-len(losses) :],
            losses,
            color=colour(record["scheme"]),
            linewidth=1.6,
            label=name(record["scheme"]),
        )
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.set_xlabel("seconds", fontsize=8, color=INK)
    panel.legend(fontsize=7, frameon=False)
    finish(panel, "loss of a character transformer, 4 hosts at 100 Mbit/s, same steps")


def smooth(losses: list[float], over: int = 10) -> list[float]:
    """Return the moving average over the last few values."""
    return [
        sum(losses[end - over : end]) / over for end in range(over, len(losses) + 1)
    ]


def colour(scheme: str) -> str:
    """Return the colour of a method."""
    return COLOURS[scheme.partition(":")[0]]


def name(scheme: str) -> str:
    """Return the title of a scheme."""
    return NAMES.get(scheme, scheme)


def finish(panel: Axes, title: str) -> None:
    """Set the style that all panels share."""
    panel.set_title(title, fontsize=9, loc="left", color=INK)
    panel.grid(visible=True, axis="both", color="#e5e7eb", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8, colors=INK)


# -- tables ------------------------------------------------------------------------


def tables(records: Path) -> str:
    """Return the tables of docs/compression.md in order."""
    found = latest(records)
    parts = [bytes_table(found), speed_table(found, "time"), speed_table(found, "ddp")]
    parts += [auto_table(found), loss_table(found), clock_table(found)]
    return "\n\n".join("\n".join(lines) for lines in parts if len(lines) > 2)


def bytes_table(found: list[Record]) -> list[str]:
    """Table of bytes and error of one call, for noise and for gradients."""
    lines = table(
        "scheme", "noise: MB", "fewer", "error", "model: MB", "fewer", "error"
    )
    for record in some(found, "bytes", source="noise"):
        line = [name(record["scheme"])]
        for source in ("noise", "gradients"):
            for each in some(found, "bytes", source=source, scheme=record["scheme"]):
                line += [f"{each['sent_bytes'] / 1e6:.3g}", f"{each['fewer']:.3g}x"]
                line += [f"{each['error']:.2g}"]
        lines.append(row(*line))
    return lines


def speed_table(found: list[Record], part: str) -> list[str]:
    """Table of the time of every scheme per environment, and relative to Gloo."""
    records = list(some(found, part))
    places = [each for each in PLACES if any(r["place"] == each for r in records)]
    lines = table("scheme", *(PLACES[place] for place in places))
    for scheme in dict.fromkeys(record["scheme"] for record in records):
        mine = {r["place"]: r for r in some(records, part, scheme=scheme)}
        cells = []
        for place in places:
            took_s = mine[place]["median_s" if part == "time" else "step_s"]
            cells.append(
                f"{took_s * 1e3:.4g} ms, {mine[place]['faster_than_gloo']:.2f}x"
            )
        lines.append(row(name(scheme), *cells))
    return lines


def auto_table(found: list[Record]) -> list[str]:
    """Table of the time of auto relative to uncompressed."""
    records = list(some(found, "auto"))
    whats = list(dict.fromkeys(record["what"] for record in records))
    lines = table("auto / uncompressed", *whats)
    for place in dict.fromkeys(record["place"] for record in records):
        mine = {r["what"]: r["slower"] for r in some(records, "auto", place=place)}
        cells = (f"{mine[what]:.3f}" if what in mine else "" for what in whats)
        lines.append(row(PLACES[place], *cells))
    return lines


def loss_table(found: list[Record]) -> list[str]:
    """Table of the relative difference from the uncompressed loss, per seed."""
    records = [r for r in some(found, "convergence") if "off" in r]
    tasks = list(dict.fromkeys(record["task"] for record in records))
    lines = table("scheme", *tasks)
    for scheme in dict.fromkeys(record["scheme"] for record in records):
        cells = []
        for task in tasks:
            mine = some(records, "convergence", task=task, scheme=scheme)
            cells.append(", ".join(percent(record["off"]) for record in mine))
        lines.append(row(name(scheme), *cells))
    return lines


def clock_table(found: list[Record]) -> list[str]:
    """Table of the time of the same number of steps, and the loss after them."""
    lines = table("scheme", "network", "seconds", "times Gloo", "final loss")
    gloo = {r["place"]: r["seconds"][-1] for r in some(found, "clock", scheme="gloo")}
    for record in some(found, "clock"):
        took_s, place = record["seconds"][-1], record["place"]
        faster = f"{gloo[place] / took_s:.2f}x"
        loss = f"{smooth(record['losses'])[-1]:.3f}"
        lines.append(
            row(name(record["scheme"]), PLACES[place], f"{took_s:.1f}", faster, loss)
        )
    return lines


def percent(off: float | None) -> str:
    """Format a relative difference with its sign; None is a loss that is not finite."""
    return "NaN" if off is None else f"{100 * off:+.2f} %"


def table(*heads: str) -> list[str]:
    """Return the header of a table."""
    return [row(*heads), row(*("---:" if n else "---" for n in range(len(heads))))]


def row(*cells: str) -> str:
    """Return one row of a table."""
    return f"| {' | '.join(cells)} |"
