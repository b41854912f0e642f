"""Tables of results, for the terminal and for a markdown file. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from ringleader.cli import units
from ringleader.cli.bench.bench_plan import OURS, BenchCell, Competitor
from ringleader.cli.bench.measurement import AutoCheck, Results

AUTO_LIMIT = 1.10
"""Accepted time of our automatic choice relative to the best fixed algorithm."""


@dataclass(frozen=True, slots=True)
class TableCell:
    """Text of a cell, and whether it is good for Ringleader (None: neutral)."""

    text: str
    is_good: bool | None = None


@dataclass(frozen=True, slots=True)
class TableContent:
    """Title, headers and rows of one table."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]


def result_tables(results: Results) -> list[TableContent]:
    """Return a table per operation and ranks, and separate ones for algorithms."""
    found: list[TableContent] = []
    for ranks in results.ranks():
        for operation in results.operations():
            if results.cells(ranks, operation):
                found.append(_comparison_table(results, ranks, operation))
                found += _algorithm_tables(results, ranks, operation)
    return found


def auto_table(checks: list[AutoCheck]) -> TableContent:
    """Compare automatic choice and best fixed algorithm, worst cell first."""
    rows = tuple(
        (
            TableCell(str(check.ranks)),
            TableCell(check.cell.operation),
            TableCell(size_text(check.cell.total_bytes)),
            TableCell(check.library),
            TableCell(time_text(check.auto_s)),
            TableCell(time_text(check.best_s)),
            TableCell(check.best),
            TableCell(f"{check.loss:.2f}", check.loss <= AUTO_LIMIT),
        )
        for check in sorted(checks, key=lambda check: -check.loss)
    )
    names = "ranks operation size transport auto best,fixed algorithm auto/best"
    headers = tuple(name.replace(",", " ") for name in names.split())
    within = sum(check.loss <= AUTO_LIMIT for check in checks)
    title = f"auto within 10 % of the best fixed algorithm in {within} of {len(checks)}"
    return TableContent(title, headers, rows)


def draw(content: TableContent) -> Table:
    """Render for a terminal: green where Ringleader is faster, red where slower."""
    table = Table(title=content.title, title_justify="left", box=box.SIMPLE_HEAD)
    for header in content.headers:
        # Headers of two lines let nine columns fit into 80 characters.
        table.add_column(header.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in content.rows:
        table.add_row(*(Text(field.text, _style(field)) for field in row))
    return table


def markdown(content: TableContent) -> str:
    """Render as markdown, with values in bold where Ringleader is slower."""
    rule = "|".join("---:" for _ in content.headers)
    header = " | ".join(content.headers)
    lines = [f"### {content.title}", "", f"| {header} |", f"|{rule}|"]
    for row in content.rows:
        texts = (f"**{e.text}**" if e.is_good is False else e.text for e in row)
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def size_text(size_bytes: int) -> str:
    """Format 65536 as ``64 KiB`` and 100000, not a binary multiple, as ``100 kB``."""
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >> exponent and size_bytes % (1 << exponent) == 0:
            return f"{size_bytes >> exponent} {unit}"
    return units.format_bytes(size_bytes)


def time_text(seconds: float | None) -> str:
    """Format with a suitable unit; a dash if it was not measured."""
    return "-" if seconds is None else units.format_seconds(seconds)


def _comparison_table(results: Results, ranks: int, operation: str) -> TableContent:
    """Compare our automatic choice with the peers, with ratios."""
    competitors = [c for c in results.competitors() if c.algorithm is None]
    ours = [competitor for competitor in competitors if competitor.is_ours]
    pairs = [(our, peer) for our in ours for peer in results.peers()]
    headers = ["size", *(competitor.short_title for competitor in competitors)]
    headers += [f"{our.short_title} x{peer.short_title}" for our, peer in pairs]
    rows = tuple(
        _row(results, ranks, cell, competitors, pairs)
        for cell in results.cells(ranks, operation)
    )
    return TableContent(f"{operation}, {ranks} ranks", tuple(headers), rows)


def _algorithm_tables(
    results: Results, ranks: int, operation: str
) -> list[TableContent]:
    """Compare our automatic choice with every fixed algorithm, per transport."""
    found: list[TableContent] = []
    cells = results.cells(ranks, operation)
    for library in OURS:
        mine = [
            competitor
            for competitor in results.competitors()
            if competitor.library == library
            and any(results.call_s(ranks, cell, competitor) for cell in cells)
        ]
        if all(competitor.algorithm is None for competitor in mine):
            continue
        headers = ("size", *(competitor.algorithm or "auto" for competitor in mine))
        rows = tuple(_row(results, ranks, cell, mine, []) for cell in cells)
        title = f"{operation}, {ranks} ranks, algorithms over {library}"
        found.append(TableContent(title, headers, rows))
    return found


def _row(
    results: Results,
    ranks: int,
    cell: BenchCell,
    competitors: list[Competitor],
    pairs: list[tuple[Competitor, Competitor]],
) -> tuple[TableCell, ...]:
    times = (results.call_s(ranks, cell, competitor) for competitor in competitors)
    ratios = (results.ratio(ranks, cell, ours, peer) for ours, peer in pairs)
    return (
        TableCell(size_text(cell.total_bytes)),
        *(TableCell(time_text(seconds)) for seconds in times),
        *(_ratio_cell(ratio) for ratio in ratios),
    )


def _ratio_cell(ratio: float | None) -> TableCell:
    if ratio is None:
        return TableCell("-")
    return TableCell(f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}", ratio >= 1)


def _style(field: TableCell) -> str:
    if field.is_good is None:
        return ""
    return "green" if field.is_good else "red"
