"""What the person at a machine is told about a run."""

from __future__ import annotations

from dataclasses import replace

from ringleader.collectives.cost_model import LinkCost, Network
from ringleader.ids import NodeId
from ringleader.training.data.balance import Balance, Report, observe
from ringleader.training.data.data_state import DataSpec
from ringleader.training.data.efficiency import Traffic
from ringleader.training.run_news import PLAN_EVERY_S, RunNews

A, B, C = NODES = [NodeId(letter * 52) for letter in "abc"]
NAMES = {A: "pc", B: "laptop", C: "nas"}
SPEC = DataSpec(num_samples=1000, global_batch=32, micro_batch=4, epochs=None)
LINK = LinkCost(1e-4, 125e6)


class Shown:
    """The news of one machine, and a clock."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.now_s = 0.0
        self.news = RunNews(SPEC, Traffic(1000), self.texts.append, lambda: self.now_s)

    def new(self) -> list[str]:
        found = list(self.texts)
        self.texts.clear()
        return found


def network(size: int) -> Network:
    row = [LINK] * size
    links = tuple((*row[:i], None, *row[i + 1 :]) for i in range(size))
    return Network(links=links, hosts=tuple(range(size)))


def test_who_joined_who_left_and_that_the_step_was_completed() -> None:
    shown = Shown()
    shown.news.entered({A: "pc", B: "laptop"}, 0)
    assert shown.new() == ["step 1 begins on 2 machines: pc, laptop"]
    shown.news.delivered(1, [A, B])
    shown.news.entered({A: "pc", B: "laptop"}, 1)
    assert shown.new() == [], "nothing has changed"
    shown.news.entered(NAMES, 4)
    assert shown.new() == ["nas joined; step 5 goes on on 3 machines: pc, laptop, nas"]
    shown.news.delivered(5, [A, B])
    assert shown.new() == []
    shown.news.entered({C: "nas"}, 7)
    assert shown.new() == ["pc and laptop left the run; step 8 goes on on nas alone"]
    shown.news.delivered(8, [C])
    assert shown.new() == ["step 8 is complete, computed by nas"]
    shown.news.delivered(9, [C])
    assert shown.new() == []


def test_two_machines_that_need_a_majority_are_told_who_waits() -> None:
    shown = Shown()
    shown.news.entered({A: "pc", B: "laptop"}, 0)
    shown.new()
    for _ in range(2):
        shown.news.no_witness(B)
    assert shown.new() == [
        'partition="majority" with two machines: if they lose each other, laptop goes '
        "on and pc waits for it, also if laptop has lost its power"
    ]


def test_a_plan_is_shown_when_it_is_measured_and_new() -> None:
    shown, balance = Shown(), Balance()
    shown.news.entered(NAMES, 0)
    shown.new()

    def step(times: dict[NodeId, float]) -> list[str]:
        nonlocal balance
        reports = {node: Report(time_s) for node, time_s in times.items()}
        balance = observe(balance, SPEC.num_quanta, list(times), reports)
        shown.news.plan(balance, network(len(times)))
        return shown.new()

    equal = dict.fromkeys(NODES, 1.0)
    assert [step(equal), step(equal)] == [[], []], "not measured well yet"
    (text,) = step(equal)
    assert text.startswith("a step is 8 times 4 samples: pc 3, laptop 3, nas 2")
    assert step(equal) == []
    slow = {**equal, C: 3.0}
    assert [step(slow) for _ in range(3)] == [[], [], []], "shown a moment ago"
    shown.now_s += PLAN_EVERY_S
    (text,) = step(slow)
    assert "nas 1 (the speed of nas changed)" in text
    two = replace(balance, quotas=((A, 4), (B, 4)))
    shown.news.plan(two, network(2))
    assert shown.new() == [], "of a step before a view change"
    shown.news.entered({A: "pc", B: "laptop"}, 9)
    shown.new()
    shown.news.plan(two, network(2))
    assert len(shown.new()) == 1, "other machines are always news"


def test_a_plan_is_news_when_a_machine_does_half_or_twice_as_much() -> None:
    """On a busy network the speeds go up and down in every step."""
    shown = Shown()
    shown.news.entered(NAMES, 0)
    shown.new()
    balance, equal = Balance(), dict.fromkeys(NODES, Report(1.0))
    while not balance.quotas or not shown.new():
        balance = observe(balance, SPEC.num_quanta, NODES, equal)
        shown.news.plan(balance, network(3))

    def three_minutes(*plans: tuple[int, int, int]) -> int:
        for second in range(180):
            shown.now_s += 1
            quotas = tuple(zip(NODES, plans[second % len(plans)], strict=True))
            shown.news.plan(replace(balance, quotas=quotas), network(3))
        return len(shown.new())

    assert three_minutes((20, 10, 2), (19, 10, 3), (19, 11, 2)) == 1, "unlike the first"
    assert three_minutes((20, 10, 2), (18, 11, 3), (21, 8, 3)) == 0
    assert three_minutes((20, 10, 2), (8, 10, 14)) <= 2, "ever less often"
    shown.now_s += 3600.0
    assert three_minutes((16, 16, 0)) == 1, "one has nothing to do any more"
