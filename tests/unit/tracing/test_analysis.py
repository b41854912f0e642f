"""From recorded events to the parts of a step, the cause of a wait and the sentence."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.tracing.analysis.advice import advise
from ringleader.tracing.analysis.causes import Causes, Late, SlowLink
from ringleader.tracing.analysis.chrome_trace import chrome_events
from ringleader.tracing.analysis.clock import Answer, Clock, Offset, estimate
from ringleader.tracing.analysis.events import (
    UNKNOWN_RANK,
    Blocked,
    Encode,
    Operation,
    RankTrace,
    Recording,
    Span,
    Step,
    Wait,
)
from ringleader.tracing.analysis.parts import step_parts
from ringleader.tracing.analysis.summary import summarize
from ringleader.tracing.analysis.table import format_table

MS = 1_000_000
MIB = 1 << 20


def operation(
    begin: int,
    end: int,
    *,
    sequence: int = 1,
    num_bytes: int = MIB,
    codec: str = "none",
    encode: int = 0,
) -> Operation:
    """An all_reduce; times in milliseconds."""
    kind = "all_reduce", "ring", codec, num_bytes, encode * MS
    return Operation(begin * MS, end * MS, "g", sequence, *kind)


def wait(begin: int, end: int, peer: int, sequence: int = 1) -> Wait:
    return Wait(begin * MS, end * MS, "g", sequence, peer)


def trace(rank: int, machine: str, *events: object, end: int = 100) -> RankTrace:
    """A rank with one step from 0 to ``end``; a blocked run per operation."""
    made = RankTrace(rank, machine, is_complete=True)
    made.add(Step(0, end * MS, 1))
    for event in events:
        made.add(event)  # type: ignore[arg-type]
        if isinstance(event, Operation):
            made.add(Blocked(event.begin_ns, event.end_ns))
    return made


def recording(*ranks: RankTrace, **links: float) -> Recording:
    """Links as ``l01=125e6``: bytes per second from rank 0 to rank 1."""
    made = Recording({each.rank: each for each in ranks})
    made.links = {(int(name[1]), int(name[2])): v for name, v in links.items()}
    return made


runs = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 40)).map(lambda t: (t[0], sum(t)))
)


@given(operations=runs, waits=runs, blocked=runs, encodes=runs, splits=runs)
def test_the_parts_add_up_to_the_step_whatever_overlaps(
    operations: list[tuple[int, int]],
    waits: list[tuple[int, int]],
    blocked: list[tuple[int, int]],
    encodes: list[tuple[int, int]],
    splits: list[tuple[int, int]],
) -> None:
    made = RankTrace(0)
    edges = sorted({0, 150, *(a for a, _ in splits)})
    for number, (begin, end) in enumerate(pairwise(edges), 1):
        made.steps.append(Step(begin, end, number))
    for i, (a, b) in enumerate(operations):
        made.operations.append(Operation(a, b, "g", i, "x", "ring", "none", 4, b - a))
    made.waits = [Wait(a, b, "g", i, 1) for i, (a, b) in enumerate(waits)]
    made.blocked = [Blocked(a, b) for a, b in blocked]
    made.encodes = [Encode(a, b) for a, b in encodes]
    found = recording(made)
    steps = step_parts(found, Causes(found))[0]
    assert len(steps) == len(made.steps)
    for step in made.steps:
        parts = steps[step.number]
        engine = parts.encode_ns + parts.wire_ns + parts.waiting_ns + parts.other_ns
        assert parts.compute_ns + engine == step.end_ns - step.begin_ns
        assert parts.hidden_ns <= parts.compute_ns
    assert sum(p.exposed_ns for p in steps.values()) == len(
        {t for a, b in blocked for t in range(a, min(b, 150))}
    )


def test_each_moment_that_the_script_is_blocked_belongs_to_what_the_engine_did() -> (
    None
):
    found = recording(
        trace(
            0,
            "studio",
            operation(20, 60, encode=10),
            wait(30, 50, peer=1),
            Encode(60 * MS, 65 * MS),
            Blocked(60 * MS, 70 * MS),
            operation(80, 90, sequence=2),
        ),
        trace(1, "laptop", operation(20, 60), operation(80, 90, sequence=2)),
    )
    found.ranks[0].blocked.pop()  # the last operation runs while the script computes
    parts = step_parts(found, Causes(found))[0][1]
    assert parts.compute_ns == 50 * MS
    assert parts.waits_ns == {SlowLink(1, 0): 20 * MS}
    assert parts.encode_ns == (10 + 5) * MS  # half of the active 20 ms, and 5 between
    assert parts.wire_ns == 10 * MS
    assert parts.other_ns == 5 * MS
    assert parts.hidden_ns == 10 * MS
    assert (parts.num_operations, parts.num_bytes) == (2, 2 * MIB)


def test_a_wait_is_explained_by_the_rank_at_the_end_of_the_chain() -> None:
    found = recording(
        trace(0, "a", operation(0, 100), wait(0, 100, peer=1)),
        trace(1, "b", operation(0, 100), wait(0, 90, peer=2)),
        trace(2, "c", operation(70, 100)),
    )
    pieces = list(Causes(found).explain(0, found.ranks[0].waits[0]))
    # Until 70 rank 2 had not begun; then its bytes are on their way to rank 1.
    assert pieces == [
        (0, 70 * MS, Late(2)),
        (70 * MS, 100 * MS, SlowLink(2, 1)),
    ]


def test_ranks_that_wait_in_a_circle_wait_for_the_slowest_link_of_it() -> None:
    found = recording(
        *(
            trace(r, name, operation(0, 100), wait(0, 100, peer=(r - 1) % 3))
            for r, name in enumerate("abc")
        ),
        l01=125e6,
        l12=2e6,
        l20=125e6,
    )
    for rank in range(3):
        (piece,) = Causes(found).explain(rank, found.ranks[rank].waits[0])
        assert piece[2] == SlowLink(1, 2)


def test_a_rank_that_died_is_what_the_others_wait_for() -> None:
    found = recording(
        trace(0, "a", operation(0, 100), wait(0, 100, peer=1)), trace(1, "b")
    )
    found.ranks[1].is_complete = False
    (piece,) = Causes(found).explain(0, found.ranks[0].waits[0])
    assert piece[2] == Late(1)
    assert "rank 1: the trace ends early" in format_table(summarize(found))


def test_waiting_for_a_rank_without_a_trace_is_blamed_on_nobody() -> None:
    found = recording(trace(0, "a", operation(30, 100), wait(30, 90, UNKNOWN_RANK)))
    assert advise(summarize(found)) == (
        "rank 0 on `a` waits 60 % of the step for others; why is not in this trace"
    )
    assert format_table(summarize(found)).splitlines()[1].endswith("others")


def slow_link() -> Recording:
    """Three machines; the link of the second one is slow."""
    links = {"l01": 3e6, "l10": 3e6, "l12": 2e6, "l21": 2e6, "l02": 1e8, "l20": 1e8}
    names = "tower", "laptop", "studio"
    return recording(
        *(
            trace(
                r,
                name,
                operation(30, 100, num_bytes=MIB // 4),
                wait(32, 93, peer=(r - 1) % 3),
            )
            for r, name in enumerate(names)
        ),
        **links,
    )


def test_the_sentence_names_the_machine_with_the_slow_link() -> None:
    found = slow_link()
    sentence = advise(summarize(found))
    assert "of the step for `laptop`'s network link (16 Mbit/s)" in sentence
    assert sentence.endswith("try --compress int8")
    found.ranks[1].link_kind = "Wi-Fi"
    sentence = advise(summarize(found))
    assert sentence == (
        "rank 0 on `tower` waits 70 % of the step for `laptop`'s Wi-Fi (16 Mbit/s): "
        "try --compress int8"
    )


def test_the_sentence_does_not_suggest_what_is_used_already() -> None:
    found = slow_link()
    for each in found.ranks.values():
        (first,) = each.operations
        each.operations = [operation(30, 100, num_bytes=MIB // 4, codec="int8")]
        assert first.begin_ns == each.operations[0].begin_ns
    assert "gradients are compressed already" in advise(summarize(found))


def test_a_link_between_two_machines_is_named_by_its_other_end() -> None:
    found = recording(
        trace(0, "a", operation(30, 100), wait(30, 95, peer=1)),
        trace(1, "b", operation(30, 90), wait(30, 85, peer=0)),
        l01=12e6,
        l10=12e6,
    )
    assert "for its link with `b` (96 Mbit/s)" in advise(summarize(found))
    found.ranks[1].link_kind = "Wi-Fi"
    assert "for `b`'s Wi-Fi" in advise(summarize(found))


def test_the_sentence_names_the_machine_that_computes_longer() -> None:
    found = recording(
        trace(0, "a", operation(20, 90), wait(20, 80, peer=1)),
        trace(1, "old", operation(80, 90)),
    )
    assert advise(summarize(found)).startswith(
        "rank 0 on `a` waits 60 % of the step for rank 1 on `old`, which computes "
        "90.0 ms per step instead of 30.0 ms: give it a smaller batch"
    )


def test_the_sentence_says_when_compression_takes_longest() -> None:
    found = recording(
        trace(0, "a", operation(50, 100, codec="int8", encode=40), wait(98, 100, 1)),
        trace(1, "b", operation(60, 100, codec="int8", encode=30)),
    )
    assert advise(summarize(found)) == (
        "rank 0 on `a` spends 40 % of the step on compression (int8): try a cheaper "
        "one, such as --compress bf16"
    )


def test_the_sentence_says_when_operations_are_too_small() -> None:
    many = [operation(t, t + 2, sequence=t, num_bytes=400) for t in range(0, 80, 2)]
    found = recording(trace(0, "a", *many), trace(1, "b", *many), l01=1e8, l10=1e8)
    sentence = advise(summarize(found))
    assert "for 40 operations of 0 KiB on average" in sentence
    assert "try larger batches" in sentence
    found.links.clear()
    assert advise(summarize(found)) == sentence


def test_ranks_of_one_machine_are_not_told_to_compress() -> None:
    found = recording(
        trace(0, "a", operation(30, 100), wait(30, 95, peer=1)),
        trace(1, "a", operation(30, 90), wait(30, 85, peer=0)),
    )
    sentence = advise(summarize(found))
    assert "for exchanges with rank 1, on the same machine" in sentence
    assert "fewer processes" in sentence
    assert "link rank 1 -> rank 0" in format_table(summarize(found))


def test_the_sentence_says_when_there_is_nothing_to_gain() -> None:
    found = recording(
        trace(0, "a", operation(95, 100)), trace(1, "b", operation(97, 100))
    )
    assert advise(summarize(found)).startswith(
        "every rank computes for at least 95 % of the step: the network is not the "
        "limit; rank 1 on `b` computes longest, 97.0 ms per step"
    )


def test_the_sentence_says_when_another_backend_hides_the_waiting() -> None:
    sentence = advise(summarize(recording(trace(0, "a"), trace(1, "b"))))
    assert sentence.endswith("try --backend ringleader")
    assert "every rank computes" in advise(summarize(recording(trace(0, "a"))))


def test_without_steps_the_sentence_says_how_a_step_is_found() -> None:
    assert "optimizer.step()" in advise(summarize(Recording({0: RankTrace(0)})))


def test_the_first_step_does_not_count_in_the_mean() -> None:
    made = trace(0, "a", end=1000)
    made.add(Step(1000 * MS, 1100 * MS, 2))
    made.add(Step(1100 * MS, 1200 * MS, 3))
    count, parts = summarize(recording(made)).mean_steps(0)
    assert (count, parts.step_ns) == (2, 200 * MS)


def test_the_table_has_a_row_per_step_and_rank_and_names_what_was_waited_for() -> None:
    found = slow_link()
    found.ranks[2].num_dropped = 7
    for each in found.ranks.values():
        each.add(Step(100 * MS, 200 * MS, 2))
        each.add(Step(200 * MS, 300 * MS, 3))
    lines = format_table(summarize(found)).splitlines()
    assert len(lines) == 1 + 9 + 3 + 2
    assert lines[0].split()[:4] == ["step", "rank", "machine", "time"]
    assert lines[1].split()[:4] == ["1", "0", "tower", "0.100"]
    assert lines[1].endswith("link laptop -> studio")
    assert "rank 2 could not keep 7 events" in lines[-2]


def test_the_table_stays_short_in_a_long_run() -> None:
    made = trace(0, "a")
    for i in range(1, 1000):
        made.add(Step(100 * i * MS, 100 * (i + 1) * MS, i + 1))
    lines = format_table(summarize(recording(made))).splitlines()
    assert len(lines) < 30
    assert lines[-3].split()[0] == "1000"


def test_the_script_row_of_the_file_covers_each_step_without_a_gap() -> None:
    found = slow_link()
    found.ranks[0].add(Span(95 * MS, 99 * MS, "optimizer"))
    events = json.loads(json.dumps(list(chrome_events(found))))
    script = [e for e in events if e.get("tid") == 1 and e["pid"] == 0]
    parts = sorted(
        (e["ts"], e["dur"], e["cat"])
        for e in script
        if e.get("cat") not in ("span",) and e["ph"] == "X"
    )
    assert sum(dur for _, dur, _ in parts) == pytest.approx(100_000)
    for (at, dur, _), (then, _, _) in pairwise(parts):
        assert at + dur == pytest.approx(then)
    assert {category for *_, category in parts} == {"compute", "wire", "wait"}
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"rank 0 tower", "rank 1 laptop", "rank 2 studio"}
    waits = [e["name"] for e in events if e.get("cat") == "wait"]
    assert set(waits) == {"waiting for link laptop -> studio"}


def test_the_quickest_answer_tells_the_offset_of_a_clock() -> None:
    slow, quick = Answer(0, 1_900, 1000), Answer(2000, 3_050, 2100)
    offset = estimate([slow, quick])
    assert offset == Offset(2050, 1000, 50)
    assert Clock([offset]).convert(5000) == 6000


def test_a_clock_that_drifts_is_followed_between_two_estimates() -> None:
    clock = Clock([Offset(1000, 100, 5), Offset(2000, 200, 7)])
    assert [clock.convert(t) for t in (500, 1000, 1500, 2500)] == [
        600,
        1100,
        1650,
        2700,
    ]
    assert clock.error_ns == 7
    assert clock.convert_event(Blocked(1000, 2000)) == Blocked(1100, 2200)
    assert Clock([]).convert(7) == 7
