"""``format_table``: the parts of the last steps of all ranks as text."""

from __future__ import annotations

from ringleader.tracing.analysis.advice import advise
from ringleader.tracing.analysis.causes import Cause, Late, Unexplained
from ringleader.tracing.analysis.events import UNKNOWN_RANK
from ringleader.tracing.analysis.parts import Parts
from ringleader.tracing.analysis.summary import Summary

MAX_ROWS = 24
"""Rows of single steps; the last steps are shown."""
HEAD = ("step", "rank", "machine", "time", "compute", "encode", "wire", "waiting")
HEAD_END = ("other", "hidden", "mostly for")


def format_table(summary: Summary) -> str:
    """Return the table and, below it, the sentence that says what to try."""
    ranks = sorted(summary.steps)
    numbers = sorted({n for steps in summary.steps.values() for n in steps})
    shown = numbers[-max(1, MAX_ROWS // max(1, len(ranks))) :] if numbers else []
    rows: list[tuple[str, ...]] = [(*HEAD, *HEAD_END)]
    for number in shown:
        for rank in ranks:
            if number in summary.steps[rank]:
                parts = summary.steps[rank][number]
                rows.append(_row(str(number), rank, parts, 1, summary))
    for rank in ranks:
        count, parts = summary.mean_steps(rank)
        if count > 1:
            rows.append(_row("mean", rank, parts, count, summary))
    lines = _align(rows) if len(rows) > 1 else []
    lines += _notes(summary)
    return "\n".join([*lines, advise(summary)])


def _row(
    step: str, rank: int, parts: Parts, count: int, summary: Summary
) -> tuple[str, ...]:
    shares = (
        parts.compute_ns,
        parts.encode_ns,
        parts.wire_ns,
        parts.waiting_ns,
        parts.other_ns,
        parts.hidden_ns,
    )
    time_s = parts.step_ns / count / 1e9
    machine = summary.machines.get(rank, "")
    percents = [f"{100 * parts.share(each):.0f} %" for each in shares]
    found = step, str(rank), machine, f"{time_s:.3f} s", *percents
    return (*found, _mostly(parts, summary))


def _mostly(parts: Parts, summary: Summary) -> str:
    """Name the cause of most waiting, if it is worth a word."""
    if parts.share(parts.waiting_ns) < 0.01:
        return ""
    cause = max(parts.waits_ns, key=lambda each: parts.waits_ns[each])
    return describe(cause, summary.machines)


def describe(cause: Cause, machines: dict[int, str]) -> str:
    """Return the cause of a wait in a few words."""
    if isinstance(cause, Unexplained) and cause.rank == UNKNOWN_RANK:
        return "others"
    if isinstance(cause, Late | Unexplained):
        machine = machines.get(cause.rank, "")
        return f"rank {cause.rank}" + (f" ({machine})" if machine else "")
    ranks = cause.source, cause.target
    names = [machines.get(rank, "") for rank in ranks]
    if "" in names or names[0] == names[1]:
        names = [f"rank {rank}" for rank in ranks]
    return "link " + " -> ".join(names)


def _notes(summary: Summary) -> list[str]:
    lines = [
        f"rank {rank} could not keep {count} events; the oldest are missing"
        for rank, count in sorted(summary.dropped.items())
    ]
    if summary.incomplete:
        ranks = ", ".join(str(rank) for rank in summary.incomplete)
        text = "it died, was cut off, or tells on its machine why it could not send"
        lines.append(f"rank {ranks}: the trace ends early; {text}")
    return lines


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = {HEAD.index("machine"), len(rows[0]) - 1}
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
