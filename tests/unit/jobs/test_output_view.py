"""What users see of the output of several ranks."""

from __future__ import annotations

import re

from ringleader.jobs.client.output_view import (
    MAX_LINE,
    PlainView,
    Source,
    TerminalView,
    terminal_room,
)

LAPTOP, STUDIO = Source("laptop", 0), Source("studio", 1)


def test_lines_of_ranks_do_not_mix() -> None:
    view = PlainView()
    said = view.feed(LAPTOP, b"epoch ") + view.feed(STUDIO, b"hello\nwor")
    said += view.feed(LAPTOP, b"1\n") + view.feed(STUDIO, b"ld")
    assert said == "studio:1 | hello\nlaptop:0 | epoch 1\n"
    assert view.finish() == "studio:1 | world\n"


def test_a_character_may_come_in_two_parts() -> None:
    view, text = PlainView(), "Grüße\n".encode()
    said = "".join(view.feed(LAPTOP, text[at : at + 1]) for at in range(len(text)))
    assert said == "laptop:0 | Grüße\n"
    assert view.feed(LAPTOP, b"\xff\n") == "laptop:0 | \ufffd\n"


def test_a_pipe_gets_the_last_state_of_a_progress_bar() -> None:
    view = PlainView()
    said = view.feed(LAPTOP, b"\r 10%\r 50%\r100%\n")
    assert said == "laptop:0 | 100%\n"
    assert view.feed(LAPTOP, b"\r 10%") == ""
    assert view.finish() == "laptop:0 |  10%\n"


def test_memory_is_bounded_without_any_line_end() -> None:
    view = PlainView()
    said = "".join(view.feed(LAPTOP, b"x" * 10_000) for _ in range(100))
    assert said.count("x") >= 1_000_000 - MAX_LINE - 10_000
    for step in range(20_000):
        view.feed(STUDIO, b"\r%5d" % step)
    assert view.finish().endswith("studio:1 | 19999\n")


def shown(screen: str) -> list[str]:
    """The rows of a terminal after ``screen``; colours are left out."""
    rows = re.sub(r"\x1b\[\d+m", "", screen).split("\n")
    return [row.rpartition("\r\x1b[K")[2] for row in rows]


def test_in_a_terminal_the_bar_of_rank_0_stays_at_the_bottom() -> None:
    view = TerminalView(columns=60, machines=["laptop", "studio"])
    screen = view.feed(LAPTOP, b"\r 10%") + view.feed(STUDIO, b"a line\n")
    assert shown(screen) == ["studio:1 | a line", "laptop:0 |  10%"]
    screen += view.feed(LAPTOP, b"\r 20%") + view.note("ringleader: note")
    assert shown(screen)[1:] == ["ringleader: note", "laptop:0 |  20%"]
    screen += view.feed(LAPTOP, b"\rdone\n")
    assert shown(screen)[2:] == ["laptop:0 | done", ""]


def test_a_bar_never_wraps_and_machines_have_colours() -> None:
    room = terminal_room(40, ["laptop", "studio"])
    view = TerminalView(columns=40, machines=["laptop", "studio"])
    screen = view.feed(LAPTOP, b"\r" + b"#" * 200)
    assert len(shown(screen)[-1]) < 40
    assert view.feed(LAPTOP, b"\r" + b"#" * room).count("#") == room
    colours = {view.prefix(each)[:5] for each in (LAPTOP, STUDIO)}
    assert len(colours) == 2
