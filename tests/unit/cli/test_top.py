"""What ``ringleader top`` prints of a state of the page."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from ringleader.cli.top import curve, render
from ringleader.dashboard.page_state import State
from tests.kit.simulated_cluster import node_id, simulated_state


def text_of(state: State) -> str:
    out = StringIO()
    Console(file=out, width=140, color_system=None).print(render(state))
    return out.getvalue()


def test_machines_links_and_jobs_are_shown() -> None:
    text = text_of(simulated_state(4, 2))
    assert "cluster home   leader machine 0   view 7" in text
    assert "machine 0 *" in text
    assert "GeForce RTX 3" in text
    assert "machine 3 -> machine 0" in text
    assert "job job-1  running  on machine 1, machine 3" in text
    assert "loss 0.225" in text
    assert "250.00 ms" in text
    assert "! link to machine 3: <b>no answer</b>" in text
    assert "members: 29" in text


def test_a_job_shows_its_times_and_the_lines_of_its_failure() -> None:
    state = simulated_state(1, 1)
    (job,) = state["jobs"].values()
    job.update(started_s=1000.0, ended_s=1042.0, failure="first line\n  second line")
    text = text_of(state)
    assert ", 42 s" in text
    assert "\n  first line" in text
    assert "\n    second line" in text


def test_a_machine_alone_without_load_is_shown() -> None:
    state = simulated_state(1)
    state["machines"][node_id(0)]["load"] = None
    state["machines"][node_id(0)]["name"] = "[bold]not markup[/bold]"
    text = text_of(state)
    assert "[bold]not markup[/bold]" in text
    assert "->" not in text


def test_a_curve_is_a_line_of_blocks() -> None:
    assert curve([]) == ""
    assert curve([1.0]) == "▁"
    assert curve([0.0, 7.0]) == "▁█"
    assert len(curve([float(n) for n in range(1000)])) <= 20
    assert curve([float(n) for n in range(1000)])[-1] == "█"
