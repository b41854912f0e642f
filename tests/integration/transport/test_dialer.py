"""Several addresses of one peer: all are tried, and the one that works wins."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from unittest import mock

import pytest

from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    DeadlineExceeded,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    ProtocolError,
)
from ringleader.testing.threaded_world import run_threads
from ringleader.transport import dialer, tcp_socket
from ringleader.transport.dialer import (
    MAX_ADDRESSES,
    Dialer,
    DialLimits,
    Endpoint,
)
from ringleader.transport.free_ports import free_ports
from ringleader.wire import hello as wire

ANSWER = wire.HelloReply(
    status=wire.Status.OK, rank=0, incarnation=bytes(16), host=bytes(16)
)


@contextlib.contextmanager
def server(host: str = "127.0.0.1") -> Iterator[tcp_socket.Address]:
    """A server that answers."""
    with socket.create_server((host, 0)) as sock:
        yield host, sock.getsockname()[1]


@contextlib.contextmanager
def silence() -> Iterator[tcp_socket.Address]:
    """An address that does not answer: its backlog is full."""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address: tcp_socket.Address = sock.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield address


def nobody() -> tcp_socket.Address:
    return "127.0.0.1", free_ports(1)[0]


def connect(
    addresses: list[tcp_socket.Address], limit_s: float = 60.0
) -> tcp_socket.Address:
    sock, address = tcp_socket.dial_any(addresses, 7, Deadline.after(limit_s))
    with sock:
        assert sock.getpeername()[1] == address[1]
        assert not sock.getblocking()
    return address


def test_the_first_that_answers_is_taken() -> None:
    with server() as first, server() as second:
        assert connect([first, second]) == first


def test_a_refused_address_costs_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_socket, "STAGGER_S", 600.0)
    with server() as good:
        assert connect([*(nobody() for _ in range(8)), good]) == good


def test_a_silent_address_does_not_eat_the_time_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp_socket, "ATTEMPT_S", 600.0)
    with silence() as first, silence() as second, server() as good:
        started_s = time.monotonic()
        assert connect([first, second, good]) == good
        assert time.monotonic() - started_s > 2 * tcp_socket.STAGGER_S


def test_a_name_that_nobody_knows_does_not_stop_the_others() -> None:
    with server() as good:
        assert connect([("nobody.invalid", 1), good]) == good


def test_every_address_behind_a_name_is_tried() -> None:
    """localhost may be ::1 first, where nobody listens."""
    with server() as (_, port):
        assert connect([("localhost", port)]) == ("localhost", port)


def test_who_comes_later_is_found() -> None:
    where = nobody()
    found: list[tcp_socket.Address] = []
    thread = threading.Thread(
        target=lambda: found.append(connect([nobody(), where])), name="dialer"
    )
    thread.start()
    time.sleep(0.2)
    with socket.create_server(where):
        thread.join(60.0)
    assert found == [where]


def test_at_the_deadline_the_best_reason_is_told() -> None:
    """Two cases at the same time, because both wait for it."""
    run_threads([name_all_that_do_not_answer, prefer_a_refusal_to_silence])


def name_all_that_do_not_answer() -> None:
    with silence() as silent:
        refused = nobody()
        with pytest.raises(PeerUnreachable) as caught:
            connect([silent, refused], limit_s=8.0)
    assert caught.value.peer == 7
    for host, port in (silent, refused):
        assert f"{host}:{port}" in str(caught.value)


@pytest.mark.parametrize("tries", [1, 3])
def test_a_number_of_tries_ends_the_dialing_before_its_time(
    tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = mock.Mock(side_effect=tcp_socket._race)
    monkeypatch.setattr(tcp_socket, "_race", race)
    limits = DialLimits(tries=tries)
    place, hour = Endpoint((nobody(), nobody())), Deadline.after(3600.0)
    with pytest.raises(PeerUnreachable, match=f"did not answer to {tries} tries"):
        Dialer(0, place, None, hour, limits=limits).open(lambda *_: ANSWER)
    assert race.call_count == tries

    hellos = []

    def greet(_sock: socket.socket, _deadline: Deadline) -> wire.HelloReply:
        hellos.append(1)
        raise PeerLost(0, "closed the connection during the hello")

    with server() as rude, pytest.raises(PeerLost):
        Dialer(0, Endpoint((rude,)), None, hour, limits=limits).open(greet)
    assert len(hellos) == tries


def test_each_connection_may_have_a_shorter_limit_than_the_whole() -> None:
    place, hour = Endpoint((nobody(),)), Deadline.after(3600.0)
    found = Dialer(0, place, None, hour, limits=DialLimits(timeout_s=0.5))
    for _ in range(2):
        with pytest.raises(PeerUnreachable, match=r"did not answer within 0\.5 s"):
            found.open(lambda *_: ANSWER)


def test_a_dialer_leaves_nothing_open_behind() -> None:
    """The leak check of every test looks; here the losers are still on their way."""
    with silence() as one, silence() as other, server() as good:
        connect([one, other, good])


# -- the peer's identity -----------------------------------------------------------


def dial(
    addresses: list[tcp_socket.Address], greet: dialer.Greet, limit_s: float = 60.0
) -> tcp_socket.Address:
    place = Endpoint(tuple(addresses))
    sock, answer = Dialer(0, place, None, Deadline.after(limit_s)).open(greet)
    assert answer is ANSWER
    with sock:
        found: tcp_socket.Address = sock.getpeername()
    return found


def test_somebody_else_at_an_address_is_left_for_the_next() -> None:
    """The same private address exists in many homes."""
    with server() as wrong, server() as right:

        def greet(sock: socket.socket, _: Deadline) -> wire.HelloReply:
            if sock.getpeername() == wrong:
                raise ProtocolError(0, "not a Ringleader peer")
            return ANSWER

        assert dial([wrong, right], greet) == right


def test_who_is_refused_everywhere_says_so() -> None:
    with server() as one, server() as other:
        calls = []

        def greet(sock: socket.socket, _: Deadline) -> wire.HelloReply:
            calls.append(sock.getpeername())
            raise PeerRefused(0, "no")

        with pytest.raises(PeerRefused, match="no"):
            dial([one, other], greet)
        assert calls == [one, other], "each is asked once"


def prefer_a_refusal_to_silence() -> None:
    with server() as refusing:

        def greet(_sock: socket.socket, _deadline: Deadline) -> wire.HelloReply:
            raise PeerRefused(0, "no")

        with pytest.raises(PeerRefused, match="no"):
            dial([refusing, nobody()], greet, limit_s=8.0)


def test_who_connects_and_says_nothing_gets_a_moment_and_then_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialer, "SILENCE_S", 0.1)
    with server() as mute, server() as right:

        def greet(sock: socket.socket, deadline: Deadline) -> wire.HelloReply:
            if sock.getpeername() == right:
                return ANSWER
            tcp_socket.recv_exact(sock, 1, 0, deadline)
            raise AssertionError("it is mute")

        assert dial([mute, right], greet) == right


def test_the_only_address_may_be_silent_until_the_deadline() -> None:
    """It is our peer, which is busy with others."""
    with server() as busy:

        def greet(sock: socket.socket, deadline: Deadline) -> wire.HelloReply:
            tcp_socket.recv_exact(sock, 1, 0, deadline)
            raise AssertionError("it is mute")

        with pytest.raises(DeadlineExceeded, match="silent during the hello"):
            dial([busy], greet, limit_s=2.0)


def test_the_address_that_worked_is_used_first_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with silence() as one, silence() as other, server() as right:
        place = Endpoint((one, other, right))
        found = Dialer(0, place, None, Deadline.after(60.0))
        first, _ = found.open(lambda _sock, _deadline: ANSWER)
        monkeypatch.setattr(tcp_socket, "STAGGER_S", 600.0)
        second, _ = found.open(lambda _sock, _deadline: ANSWER)
        first.close()
        second.close()


def test_who_hangs_up_is_asked_again() -> None:
    with server() as good:
        calls = []

        def greet(_sock: socket.socket, _deadline: Deadline) -> wire.HelloReply:
            calls.append(1)
            if len(calls) < 3:
                raise PeerLost(0, "closed the connection during the hello")
            return ANSWER

        assert dial([good], greet) == good


@pytest.mark.parametrize("count", [0, MAX_ADDRESSES + 1])
def test_a_place_has_some_addresses_and_not_too_many(count: int) -> None:
    with pytest.raises(ConfigError, match=f"1 to {MAX_ADDRESSES} addresses"):
        Endpoint((("127.0.0.1", 1),) * count)
