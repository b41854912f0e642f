"""Results as tables: the same rows for the terminal and for a markdown file. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from ringleader.cli import units
from ringleader.cli.bench.plan import OURS, Cell, Contender
from ringleader.cli.bench.result import AutoCheck, Results

AUTO_LIMIT = 1.10
"""Our own choice may lose this much against the best fixed algorithm, not more."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One field: its text, and whether it speaks for us (None: neither)."""

    text: str
    is_good: bool | None = None


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table, not yet drawn."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]


def sheets(results: Results) -> list[Sheet]:
    """A table per operation and ranks; fixed algorithms in tables of their own."""
    found: list[Sheet] = []
    for ranks in results.ranks():
        for operation in results.operations():
            if results.cells(ranks, operation):
                found.append(_duel_sheet(results, ranks, operation))
                found += _algorithm_sheets(results, ranks, operation)
    return found


def auto_sheet(checks: list[AutoCheck]) -> Sheet:
    """Our choice against the best fixed algorithm, the worst cell first."""
    rows = tuple(
        (
            Entry(str(check.ranks)),
            Entry(check.cell.operation),
            Entry(size_text(check.cell.total_bytes)),
            Entry(check.engine),
            Entry(time_text(check.auto_s)),
            Entry(time_text(check.best_s)),
            Entry(check.best),
            Entry(f"{check.loss:.2f}", check.loss <= AUTO_LIMIT),
        )
        for check in sorted(checks, key=lambda check: -check.loss)
    )
    names = "ranks operation size transport auto best,fixed algorithm auto/best"
    headers = tuple(name.replace(",", " ") for name in names.split())
    within = sum(check.loss <= AUTO_LIMIT for check in checks)
    title = f"auto within 10 % of the best fixed algorithm in {within} of {len(checks)}"
    return Sheet(title, headers, rows)


def draw(sheet: Sheet) -> Table:
    """For a terminal: green where we are ahead, red where we are behind."""
    table = Table(title=sheet.title, title_justify="left", box=box.SIMPLE_HEAD)
    for header in sheet.headers:
        # Two lines of words: nine columns fit into a terminal of eighty characters.
        table.add_column(header.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in sheet.rows:
        table.add_row(*(Text(entry.text, _style(entry)) for entry in row))
    return table


def markdown(sheet: Sheet) -> str:
    """For a file: the same table, losses in bold."""
    rule = "|".join("---:" for _ in sheet.headers)
    lines = [f"### {sheet.title}", "", f"| {' | '.join(sheet.headers)} |", f"|{rule}|"]
    for row in sheet.rows:
        texts = (f"**{e.text}**" if e.is_good is False else e.text for e in row)
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def size_text(size_bytes: int) -> str:
    """``65536`` as ``64 KiB``; what is not a round binary number as ``100 kB``."""
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >> exponent and size_bytes % (1 << exponent) == 0:
            return f"{size_bytes >> exponent} {unit}"
    return units.format_bytes(size_bytes)


def time_text(seconds: float | None) -> str:
    """With the unit that suits it; a dash for what was not measured."""
    return "-" if seconds is None else units.format_seconds(seconds)


def _duel_sheet(results: Results, ranks: int, operation: str) -> Sheet:
    """Our own choice beside the peers, with ratios."""
    contenders = [c for c in results.contenders() if c.algorithm is None]
    ours = [contender for contender in contenders if contender.is_ours]
    duels = [(our, peer) for our in ours for peer in results.peers()]
    headers = ["size", *(contender.short_title for contender in contenders)]
    headers += [f"{our.short_title} x{peer.short_title}" for our, peer in duels]
    rows = tuple(
        _row(results, ranks, cell, contenders, duels)
        for cell in results.cells(ranks, operation)
    )
    return Sheet(f"{operation}, {ranks} ranks", tuple(headers), rows)


def _algorithm_sheets(results: Results, ranks: int, operation: str) -> list[Sheet]:
    """Our own choice beside every fixed algorithm, a table per transport."""
    found: list[Sheet] = []
    cells = results.cells(ranks, operation)
    for engine in OURS:
        mine = [
            contender
            for contender in results.contenders()
            if contender.engine == engine
            and any(results.call_s(ranks, cell, contender) for cell in cells)
        ]
        if all(contender.algorithm is None for contender in mine):
            continue
        headers = ("size", *(contender.algorithm or "auto" for contender in mine))
        rows = tuple(_row(results, ranks, cell, mine, []) for cell in cells)
        title = f"{operation}, {ranks} ranks, algorithms over {engine}"
        found.append(Sheet(title, headers, rows))
    return found


def _row(
    results: Results,
    ranks: int,
    cell: Cell,
    contenders: list[Contender],
    duels: list[tuple[Contender, Contender]],
) -> tuple[Entry, ...]:
    times = (results.call_s(ranks, cell, contender) for contender in contenders)
    ratios = (results.ratio(ranks, cell, ours, peer) for ours, peer in duels)
    return (
        Entry(size_text(cell.total_bytes)),
        *(Entry(time_text(seconds)) for seconds in times),
        *(_ratio_entry(ratio) for ratio in ratios),
    )


def _ratio_entry(ratio: float | None) -> Entry:
    if ratio is None:
        return Entry("-")
    return Entry(f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}", ratio >= 1)


def _style(entry: Entry) -> str:
    if entry.is_good is None:
        return ""
    return "green" if entry.is_good else "red"
