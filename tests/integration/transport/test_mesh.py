"""Joining a mesh while it forms: duplicates, other clusters, restarted ranks."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from ringleader.deadline import Cancellation, Deadline
from ringleader.errors import PeerRefused, PeerUnreachable, RingleaderError
from ringleader.testing.threaded_world import run_threads
from ringleader.transport import dialer, shm_segment, tcp_socket
from ringleader.transport import mesh as meshes
from ringleader.transport.dialer import DialLimits, Endpoint
from ringleader.transport.free_ports import free_ports
from ringleader.transport.listener import Listener
from ringleader.transport.mesh import Mesh
from ringleader.transport.mesh_config import MeshConfig
from ringleader.wire import hello as wire

GROUP = 0xC0FFEE
FORM_S = 90.0

Outcome = Mesh | RingleaderError


@contextlib.contextmanager
def open_listeners(count: int) -> Iterator[list[Listener]]:
    made = [Listener.open("127.0.0.1", 0) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


class Table:
    """The ranks of one group, which may connect in any order and more than once."""

    def __init__(self, listeners: list[Listener]) -> None:
        self.doors = listeners

    def join(
        self,
        rank: int,
        listener: Listener | None = None,
        limit_s: float = FORM_S,
        cancellation: Cancellation | None = None,
        **changes: object,
    ) -> Outcome:
        """Connect as ``rank``; the mesh, or why there is none."""
        fields: dict[str, object] = {
            "rank": rank,
            "size": len(self.doors),
            "group": GROUP,
            "addresses": tuple(("127.0.0.1", each.port) for each in self.doors),
            "share_memory": False,
        }
        fields |= changes
        addresses: tuple[tcp_socket.Address, ...] = fields.pop("addresses")  # type: ignore[assignment]
        fields["endpoints"] = tuple(Endpoint((address,)) for address in addresses)
        config = MeshConfig(**fields)  # type: ignore[arg-type]
        try:
            return meshes.connect(
                config,
                listener or self.doors[rank],
                Deadline.after(limit_s, cancellation),
            )
        except RingleaderError as exc:
            return exc


def run(bodies: list[Callable[[], Outcome]]) -> list[Outcome]:
    return run_threads(bodies)


def hang_up(outcomes: list[Outcome]) -> None:
    """All of them are connected; the end."""
    for outcome in outcomes:
        assert isinstance(outcome, Mesh), outcome
        outcome.close()


def hello(rank: int, size: int, **changes: object) -> bytes:
    fields: dict[str, object] = {
        "purpose": wire.Purpose.CONTROL,
        "group": GROUP,
        "from_rank": rank,
        "to_rank": 0,
        "size": size,
        "incarnation": bytes(range(16)),
        "host": bytes(16),
    }
    return wire.encode_hello(wire.Hello(**{**fields, **changes}))  # type: ignore[arg-type]


def greet(listener: Listener, words: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", listener.port), 60.0)
    sock.settimeout(60.0)
    sock.sendall(words)
    return sock


def status_of(sock: socket.socket) -> wire.Status:
    data = sock.recv(wire.REPLY_BYTES, socket.MSG_WAITALL)
    return wire.decode_reply(data, "the listener").status


def test_a_second_process_with_our_rank_is_refused_and_the_group_forms() -> None:
    with open_listeners(4) as (*listeners, spare):
        table = Table(listeners)

        def one_and_its_double() -> Outcome:
            with greet(listeners[0], hello(1, 3)) as first:
                assert status_of(first) is wire.Status.OK
                refused = table.join(1, spare)
                assert isinstance(refused, PeerRefused)
                assert refused.peer == 0
                assert "every process needs a rank of its own" in str(refused)
            return table.join(1)

        hang_up(run([lambda: table.join(0), one_and_its_double, lambda: table.join(2)]))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"namespace": b"another cluster!"}, "belongs to another cluster"),
        ({"size": 3, "addresses": None}, "another number of ranks"),
        ({"num_stripes": 2}, "or of connections"),
    ],
    ids=["namespace", "size", "connections"],
)
def test_who_does_not_fit_is_refused_and_the_group_forms(
    changes: dict[str, object], says: str
) -> None:
    with open_listeners(3) as (*listeners, spare):
        table = Table(listeners)
        if "addresses" in changes:
            ports = [each.port for each in (*listeners, spare)]
            addresses = tuple(("127.0.0.1", port) for port in ports)
            changes = {**changes, "addresses": addresses}

        def misfit_then_one() -> Outcome:
            refused = table.join(1, spare, FORM_S, None, **changes)
            assert isinstance(refused, PeerRefused)
            assert refused.peer == 0
            assert says in str(refused)
            return table.join(1)

        hang_up(run([lambda: table.join(0), misfit_then_one]))


def test_a_swapped_order_is_refused_by_whoever_is_met() -> None:
    """One group, but rank 2 believes that ranks 0 and 1 live the other way round."""
    with open_listeners(4) as (*listeners, spare):
        table = Table(listeners)
        swapped = [listeners[1].port, listeners[0].port, spare.port]
        addresses = tuple(("127.0.0.1", port) for port in swapped)

        def confused_then_two() -> Outcome:
            refused = table.join(2, spare, addresses=addresses)
            assert isinstance(refused, PeerRefused)
            assert refused.peer == 0
            assert "is the peer list in the same order" in str(refused)
            return table.join(2)

        hang_up(run([lambda: table.join(0), lambda: table.join(1), confused_then_two]))


def test_who_gave_up_before_we_listened_does_not_take_the_place() -> None:
    """It tried, timed out and was started again, with another incarnation."""
    with open_listeners(2) as listeners:
        for _ in range(3):
            greet(listeners[0], hello(1, 2)).close()
        table, deadline = Table(listeners), Deadline.after(FORM_S)

        def come_when_they_were_noticed() -> Outcome:
            while not any("hung up" in why for why in listeners[0].rejected):
                assert not deadline.is_over(), "they were taken for guests"
                time.sleep(0.01)
            return table.join(1)

        hang_up(run([lambda: table.join(0), come_when_they_were_noticed]))


@pytest.mark.parametrize("num_bulk", [0, 1])
def test_a_rank_that_restarts_while_the_group_forms_is_let_in(num_bulk: int) -> None:
    with open_listeners(2) as listeners:
        table = Table(listeners)

        def restart() -> Outcome:
            opened = [greet(listeners[0], hello(1, 2, num_stripes=2))]
            assert status_of(opened[0]) is wire.Status.OK
            for stripe in range(num_bulk):
                words = {"purpose": wire.Purpose.BULK, "stripe": stripe}
                opened.append(greet(listeners[0], hello(1, 2, num_stripes=2, **words)))
                assert status_of(opened[-1]) is wire.Status.OK
            for sock in opened:
                sock.close()
            return table.join(1, num_stripes=2)

        hang_up(run([lambda: table.join(0, num_stripes=2), restart]))


def test_a_bulk_connection_without_mail_is_refused() -> None:
    with open_listeners(2) as listeners:
        table = Table(listeners)

        def sneak_in() -> Outcome:
            with greet(listeners[0], hello(1, 2, purpose=wire.Purpose.BULK)) as sock:
                assert status_of(sock) is wire.Status.DUPLICATE
            return table.join(1)

        hang_up(run([lambda: table.join(0), sneak_in]))


def test_half_of_the_connections_leaves_nothing_open() -> None:
    """The leak check of the fixture is the assertion: one of two stripes was open."""
    with open_listeners(2) as (listener, spare):
        table = Table([listener, spare])

        def accept_two() -> Outcome:
            """Rank 0 lets mail and one stripe in, then its machine dies."""
            accepted = []
            for _ in range(2):
                visitor = listener.take(
                    lambda hello: True, Deadline.after(60.0), "rank 1"
                )
                ok = wire.HelloReply(
                    status=wire.Status.OK,
                    rank=0,
                    incarnation=bytes(16),
                    host=bytes(16),
                )
                visitor.sock.sendall(wire.encode_reply(ok))
                accepted.append(visitor.sock)
            listener.close()
            for sock in accepted:
                sock.close()
            return Mesh()

        _, outcome = run([accept_two, lambda: table.join(1, None, 4.0, num_stripes=2)])
        assert isinstance(outcome, PeerUnreachable)
        assert outcome.peer == 0


def test_ranks_that_cannot_map_each_other_use_tcp_and_say_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> shm_segment.Segment:
        raise OSError("not on this system")

    monkeypatch.setattr(shm_segment, "attach", refuse)
    with open_listeners(3) as listeners:
        table = Table(listeners)
        outcomes = run(
            [lambda r=r: table.join(r, share_memory=True) for r in range(3)]  # type: ignore[misc]
        )
        for outcome in outcomes:
            assert isinstance(outcome, Mesh), outcome
            assert {link.kind for link in outcome.bulk.values()} == {"tcp"}
            assert all(
                "shared memory not possible" in n for n in outcome.notes.values()
            )
        hang_up(outcomes)


@pytest.mark.parametrize("shares", [(True, True), (True, False), (False, True)])
def test_memory_is_shared_when_both_want_it(shares: tuple[bool, bool]) -> None:
    with open_listeners(2) as listeners:
        table = Table(listeners)
        outcomes = run(
            [lambda r=r: table.join(r, share_memory=shares[r]) for r in range(2)]  # type: ignore[misc]
        )
        for outcome in outcomes:
            assert isinstance(outcome, Mesh), outcome
            (link,) = outcome.bulk.values()
            assert link.kind == ("shm" if all(shares) else "tcp")
        hang_up(outcomes)


def test_both_ranks_say_where_one_is_looked_for_in_vain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 0 listens, and nothing leads to it: long before the limit, all is known."""
    monkeypatch.setattr(dialer, "REPORT_S", 0.0)
    monkeypatch.setattr(meshes, "REPORT_S", 0.0)
    where = tuple(("127.0.0.1", port) for port in free_ports(2))
    with open_listeners(2) as listeners:
        table = Table(listeners)
        stop = Cancellation()

        def dial() -> Outcome:
            limits = DialLimits(reach_s=0.5)
            found = table.join(1, addresses=where, dial_limits=limits)
            stop.cancel("rank 1 has given up")
            return found

        waiting, dialing = run(
            [lambda: table.join(0, addresses=where, cancellation=stop), dial]
        )
    assert isinstance(waiting, RingleaderError)
    assert isinstance(dialing, PeerUnreachable)
    tried = f"127.0.0.1:{where[0][1]} (Connection refused)"
    assert tried in str(dialing)
    said = [record.message for record in caplog.records]
    assert any("rank 0 is not reached yet" in text and tried in text for text in said)
    listening = f"rank 1 has not connected yet; it dials us at 127.0.0.1:{where[0][1]}"
    assert listening in said
