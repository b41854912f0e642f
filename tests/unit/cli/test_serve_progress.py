"""What ``ringleader serve`` says about workers that it waits for."""

from __future__ import annotations

from ringleader.cli.serve_progress import describe_wait
from ringleader.paramserver.server.aggregation import Aggregation
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.scheduler import Scheduler


def test_a_run_that_waits_says_for_whom() -> None:
    plan = Plan(rounds=9, workers=3, aggregation=Aggregation("median"))
    scheduler = Scheduler(plan)

    def said(*, is_long: bool = False) -> str:
        return describe_wait(scheduler, 0.0, is_long=is_long)

    for name in ("anna", "ben", "carl"):
        scheduler.workers.join(name, "cpu", 0.0)
    scheduler.assign("w1", 0.0)
    assert said() == (
        ", the first round waits for 2 more to ask for work; ben (w2), carl (w3) "
        "joined without asking"
    )
    leases = {}
    for worker in ("w2", "w3", "w1", "w2"):
        leases[worker] = scheduler.assign(worker, 0.0)
    assert said() == ""
    assert said(is_long=True) == ", the round waits for carl (w3), anna (w1), ben (w2)"
    for worker, lease in leases.items():
        assert lease is not None
        scheduler.accept(worker, lease.key, samples=1, loss=0.0)
    scheduler.close_version(3)
    scheduler.leave("w3")
    assert said() == ", the round waits for 1 more to ask for work"
