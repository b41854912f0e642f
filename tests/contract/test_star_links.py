"""Links of a star keep the promises of ringleader.testing.link_contract."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from ringleader.deadline import Deadline
from ringleader.testing import link_contract
from ringleader.testing.link_contract import CHECKS, LEFT, RIGHT, Check
from ringleader.transport import tcp_socket
from ringleader.transport.link import Link
from ringleader.transport.star.member import Member
from ringleader.transport.star.routes import StarRoutes
from ringleader.transport.star.star import Star
from ringleader.wire import hello as wire

SIZE = 3
WAIT_S = 120.0
group_ids = itertools.count(1)


@pytest.fixture(scope="module")
def stars() -> Iterator[list[Star]]:
    """Rank 0 and two workers of one star, in this process."""
    members = [Member(world=7, rank=rank, size=SIZE) for rank in range(SIZE)]
    deadline = Deadline.after(WAIT_S)
    opened = [Star.listen(members[0], ("127.0.0.1", range(1)), None, deadline)]
    for member in members[1:]:
        opened.append(Star.dial(member, [(opened[0].address, None)], deadline))
    yield opened
    for star in reversed(opened):
        star.close()
        star.wait_until_left(WAIT_S)


def connect(stars: list[Star], source: int, to: int) -> tuple[Link, Link]:
    """Return both ends of a new link from ``source`` to ``to``."""
    group = next(group_ids)
    hello = wire.Hello(
        purpose=wire.Purpose.BULK,
        group=group,
        from_rank=source,
        to_rank=to,
        size=SIZE,
        incarnation=bytes(16),
        host=bytes(16),
    )
    dialled = stars[source].open(to)
    deadline = Deadline.after(WAIT_S)
    tcp_socket.send_all(dialled, wire.encode_hello(hello), to, deadline)
    taken = stars[to].listener.take(lambda h: h.group == group, deadline, "the link")
    routes = StarRoutes(stars[source], range(SIZE))
    return routes.link(dialled, RIGHT), routes.link(taken.sock, LEFT)


ENDS = {"worker to worker": (2, 1), "worker to root": (1, 0), "root to worker": (0, 2)}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(ends, id=name, marks=[pytest.mark.slow] * (ends != (2, 1)))
        for name, ends in ENDS.items()
    ],
)
def test_link_keeps_its_promise(
    stars: list[Star], ends: tuple[int, int], check: Check
) -> None:
    link_contract.run_check(check, lambda: connect(stars, *ends))
