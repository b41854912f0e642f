"""Tables keep whole what people copy, in a pipe and in 80 columns."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console
from rich.table import Table

from ringleader.cli.jobs import jobs_table
from ringleader.cli.status import _render
from ringleader.cli.terminal import add_id, print_tables
from ringleader.ids import NodeId, short
from ringleader.jobs.client.job_summary import JobSummary
from ringleader.jobs.protocol.job_record import JobState
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.node.peering.status_query import StatusReport
from tests.unit.cli.test_status import counts, snapshot

IDS = [NodeId(letter * 52) for letter in "abc"]
NAMES = ["living-room-computer", "workstation", "laptop-of-grandmother"]
ARGS = ["--data", "my files/a b.csv", "--note", "it's", *(["word"] * 12)]


def summary(number: int) -> JobSummary:
    machines = [JobMachine(*each) for each in zip(IDS, NAMES, strict=True)]
    spec = JobSpec(
        id=f"fine-tune-llama-{number:07x}",
        script="train.py",
        args=ARGS,
        machines=machines,
    )
    return JobSummary(
        spec=spec,
        state=JobState.RUNNING,
        created_s=1e9,
        ended_s=0.0,
        exit_status=0,
        machines=dict.fromkeys(NAMES, "running"),
    )


def printed(shown: object, *, is_terminal: bool) -> str:
    """What 80 columns show, in a terminal or not."""
    screen = io.StringIO()
    console = Console(file=screen, width=80, force_terminal=is_terminal)
    print_tables(shown, console)  # type: ignore[arg-type]
    return screen.getvalue()


@pytest.mark.parametrize("count", [1, 5])
def test_jobs_are_whole_in_80_columns_and_a_line_each_in_a_pipe(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Was: ids cut into two lines, and arguments that could not be pasted."""
    found = [summary(number) for number in range(count)]
    table = jobs_table(found)
    shown = printed(table, is_terminal=True)
    for job in found:
        assert job.spec.id in shown
    for name in NAMES:
        assert name in shown
    printed(table, is_terminal=False)
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == [
        *("job", "state", "started", "took", "disk", "machines", "command")
    ]
    assert len(rows) == count
    for job, row in zip(found, rows, strict=True):
        assert row.startswith(job.spec.id)
        assert "train.py --data 'my files/a b.csv' --note 'it'\"'\"'s' word" in row
        assert row == row.rstrip()


def test_status_keeps_names_ids_and_jobs_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = snapshot(counts(2, 0, 0), [])
    rows = [
        msgspec.structs.replace(
            plain.nodes[0], node=node, name=name, jobs=[f"fine-tune-llama-{place:07x}"]
        )
        for place, (node, name) in enumerate(zip(IDS, NAMES, strict=True))
    ]
    shot = msgspec.structs.replace(plain, nodes=rows, ring=IDS)
    shown = _render([StatusReport("here", shot)], is_live=True)
    wanted = [*NAMES, *(row.jobs[0] for row in rows), *map(short, IDS)]
    for is_terminal in (True, False):
        screen = printed(shown, is_terminal=is_terminal)
        screen += capsys.readouterr().out
        for each in wanted:
            assert each in screen


def test_a_table_wider_than_the_terminal_is_not_cut() -> None:
    table = Table(box=None)
    for number in range(4):
        add_id(table, f"c{number}", [str(number) * 30])
    table.add_row(*(str(number) * 30 for number in range(4)))
    shown = printed(table, is_terminal=True)
    for number in range(4):
        assert str(number) * 30 in shown
