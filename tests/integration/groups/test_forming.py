"""Groups from address lists: how they form, and how they say that they cannot."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from socket import gethostname

import pytest
import torch
from torch._C._distributed_c10d import HashStore

import ringleader
from ringleader import ConfigError, Group, PeerUnreachable
from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Deadline
from ringleader.groups import formation
from ringleader.groups.known_links import CostRow
from ringleader.groups.measure_links import share
from ringleader.groups.plaintext_check import is_own
from ringleader.groups.store_rendezvous import own_address
from ringleader.testing.threaded_world import run_threads, world
from ringleader.transport import tcp_socket
from ringleader.transport.free_ports import free_ports
from ringleader.transport.listener import Listener
from ringleader.transport.listening_socket import listen
from tests.kit.warm_python import WarmPython

SHORT_S = 0.5
MEET_S = 10.0
"""In which two ranks surely meet, though the machine is busy."""
LONGER_S = MEET_S + 5.0
"""Of the rank that listens: who dials one that has given up is refused a connection,
and says that."""
SLACK_S = 30.0
"""An error may come this much after its deadline, on a busy machine."""

Outcome = Group | Exception


def loopback(count: int, host: str = "127.0.0.1") -> list[str]:
    return [f"{host}:{port}" for port in free_ports(count)]


def attempt(peers: Sequence[str], rank: int, timeout_s: float) -> Outcome:
    """The group, or why there is none; never later than promised."""
    outcome: Outcome
    start_s = time.monotonic()
    try:
        outcome = ringleader.group(peers, rank, timeout_s=timeout_s)
    except ringleader.RingleaderError as exc:
        outcome = exc
    took_s = time.monotonic() - start_s
    assert took_s < timeout_s + SLACK_S, f"took {took_s:.1f} s to say {outcome}"
    return outcome


def form_all(attempts: Sequence[Callable[[], Outcome]]) -> list[Outcome]:
    return run_threads(attempts)


def groups_of(outcomes: Sequence[Outcome]) -> list[Group]:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Group)]


def form(peers: Sequence[str], **options: object) -> list[Group]:
    """All ranks, one thread each."""

    def one(rank: int) -> Group:
        return ringleader.group(peers, rank, timeout_s=60.0, **options)  # type: ignore[arg-type]

    return run_threads([lambda r=r: one(r) for r in range(len(peers))])  # type: ignore[misc]


def assert_works(groups: Sequence[Group]) -> None:
    """An all_reduce among them gives the right sum everywhere."""

    def add(group: Group) -> float:
        tensor = torch.full((5,), float(group.rank + 1))
        group.all_reduce(tensor, timeout_s=60.0)
        return float(tensor[4])

    sums = run_threads([lambda g=g: add(g) for g in groups])  # type: ignore[misc]
    assert sums == [sum(range(1, len(groups) + 1))] * len(groups)


def close(groups: Sequence[Group]) -> None:
    for group in groups:
        group.close()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_group_forms_from_an_address_list(size: int, transport: str) -> None:
    groups = form(loopback(size), transport=transport)
    assert [(g.rank, g.size) for g in groups] == [(r, size) for r in range(size)]
    kinds = {kind for group in groups for kind in group.links().values()}
    assert kinds <= {"shm" if transport == "auto" else "tcp"}
    assert_works(groups)
    close(groups)


def test_a_group_forms_over_ipv6() -> None:
    groups = form(loopback(3, "[::1]"), transport="tcp")
    assert_works(groups)
    close(groups)


def test_several_connections_per_peer_make_one_link() -> None:
    groups = form(loopback(3), transport="tcp", connections=3)
    assert groups[0].links() == {1: "tcp x 3", 2: "tcp x 3"}
    assert_works(groups)
    close(groups)


def test_a_port_in_use_is_named() -> None:
    peers = loopback(2)
    host, port = tcp_socket.parse_address(peers[0])
    taken = listen(host, port)
    with pytest.raises(ConfigError, match=f"port {port} is already in use"):
        ringleader.group(peers, 0, timeout_s=SHORT_S)
    taken.close()


def test_an_address_of_another_machine_is_no_place_to_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RINGLEADER_PLAINTEXT", "1")
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1 port 4711"):
        ringleader.group(["192.0.2.1:4711", "127.0.0.1:1"], 0, timeout_s=SHORT_S)


@pytest.mark.parametrize("rank", [0, 1])
def test_another_machine_without_encryption_is_refused_with_three_ways_out(
    rank: int,
) -> None:
    """ZF-9: links between workers were plain, whatever the user had asked for."""
    peers = ["127.0.0.1:4711", "192.0.2.1:4711"]
    with pytest.raises(ConfigError, match="rank 1 is on another machine") as caught:
        ringleader.group(peers, rank, timeout_s=SHORT_S)
    for way in ("ringleader run", "RINGLEADER_TLS_CERT", "RINGLEADER_PLAINTEXT=1"):
        assert way in str(caught.value)


def test_all_addresses_of_this_machine_are_local() -> None:
    own = own_address(HashStore())
    for host in (own, "127.0.0.1", "127.3.2.1", "::1", "localhost", gethostname()):
        assert is_own(host), host
    for host in ("192.0.2.1", "2001:db8::1", "no.such.host.invalid"):
        assert not is_own(host)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_peer_that_never_comes_is_named_with_its_address(rank: int) -> None:
    """FT-11: a missing rank is an error with a deadline."""
    peers = loopback(3)
    outcome = attempt(peers, rank, SHORT_S)
    assert isinstance(outcome, PeerUnreachable)
    blamed = 1 if rank == 0 else 0
    assert outcome.peer == blamed
    assert peers[blamed] in str(outcome)
    assert f"within {SHORT_S} s" in str(outcome)


def test_a_machine_that_does_not_answer_is_named_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """192.0.2.1 is reserved for documentation: packets to it go nowhere."""
    monkeypatch.setenv("RINGLEADER_PLAINTEXT", "1")
    outcome = attempt(["192.0.2.1:4711", loopback(1)[0]], 1, SHORT_S)
    assert isinstance(outcome, PeerUnreachable)
    assert outcome.peer == 0
    assert "192.0.2.1:4711" in str(outcome)


@pytest.mark.parametrize(
    ("peers", "rank", "says"),
    [
        ([], 0, "empty"),
        (["127.0.0.1:1", "127.0.0.1:2"], 2, "rank 2 is not in a list of 2"),
        (["127.0.0.1:1", "127.0.0.1:2"], -1, "rank -1 is not in a list of 2"),
        (["127.0.0.1:1", "h:2", "127.0.0.1:1"], 0, "127.0.0.1:1 is twice"),
        (["127.0.0.1:1", " 127.0.0.1:1"], 0, "127.0.0.1:1 is twice"),
        (["127.0.0.1:1", "nonsense"], 0, "'nonsense': write host:port"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(
    peers: list[str], rank: int, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        ringleader.group(peers, rank, timeout_s=SHORT_S)


def test_half_of_an_address_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="rank without peers"):
        ringleader.group(rank=0)
    with pytest.raises(ConfigError, match="peers without rank"):
        ringleader.group(["127.0.0.1:1"])


@pytest.mark.parametrize("connections", [0, 65])
def test_an_impossible_number_of_connections_is_refused(connections: int) -> None:
    with pytest.raises(ConfigError, match=f"got {connections}"):
        ringleader.group(loopback(2), 0, connections=connections, timeout_s=SHORT_S)


def test_an_unknown_transport_is_refused() -> None:
    with pytest.raises(ConfigError, match="carrier pigeon"):
        ringleader.group(["127.0.0.1:1"], 0, transport="carrier pigeon")


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_the_limit_of_operations_is_not_that_of_forming(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step is an operation, and a rank may be late for it."""

    def share_late(
        group: Group, costs: CostRow, deadline: Deadline
    ) -> list[torch.Tensor]:
        time.sleep(SHORT_S if group.rank == 1 else 0)
        return share(group, costs, deadline)

    monkeypatch.setattr("ringleader.groups.measure_links.share", share_late)
    config = CollectiveConfig(timeout_s=SHORT_S / 5)
    groups = form(loopback(2), transport=transport, config=config)
    assert [group.timeout_s for group in groups] == [SHORT_S / 5] * 2
    assert_works(groups)
    for group in groups:
        group.close()


@pytest.mark.slow
def test_lists_that_differ_end_in_errors_that_say_to_compare_them() -> None:
    """At the same time, because the ranks wait until their deadlines."""
    run_threads([give_different_names, give_another_order, give_different_lengths])


def give_different_names() -> None:
    peers = loopback(2)
    others = [peers[0].replace("127.0.0.1", "localhost"), peers[1]]
    outcomes = form_all(
        [lambda: attempt(peers, 0, LONGER_S), lambda: attempt(others, 1, MEET_S)]
    )
    for outcome, blamed in zip(outcomes, (1, 0), strict=True):
        assert isinstance(outcome, PeerUnreachable)
        assert outcome.peer == blamed
        assert "the same peer list in the same order" in str(outcome)
    assert "wait here for a group with another list" in str(outcomes[0])


def give_another_order() -> None:
    peers = loopback(2)
    outcomes = form_all(
        [lambda: attempt(peers, 0, MEET_S), lambda: attempt(peers[::-1], 0, MEET_S)]
    )
    for outcome in outcomes:
        assert isinstance(outcome, PeerUnreachable)
        assert "the same peer list in the same order" in str(outcome)


def give_different_lengths() -> None:
    peers = loopback(3)
    outcomes = form_all(
        [lambda: attempt(peers, 0, LONGER_S), lambda: attempt(peers[:2], 1, MEET_S)]
    )
    for outcome in outcomes:
        assert isinstance(outcome, PeerUnreachable)
        assert "the same peer list in the same order" in str(outcome)


def test_a_rank_that_joins_twice_is_refused_and_the_group_lives_on() -> None:
    """FT-11: a duplicate rank replaces nobody."""
    peers = loopback(2)
    groups = form(peers)
    with pytest.raises(ConfigError, match="already in use"):
        ringleader.group(peers, 1, timeout_s=SHORT_S)
    assert_works(groups)
    close(groups)


def test_a_group_can_be_formed_again_over_the_same_addresses() -> None:
    peers = loopback(2)
    for _ in range(3):
        groups = form(peers)
        assert_works(groups)
        close(groups)


@pytest.mark.parametrize("transport", ["memory", "tcp", "shm"])
@pytest.mark.parametrize("ranks", [[0, 1], [1, 0]])
def test_a_peer_that_is_early_for_a_subgroup_waits(
    ranks: list[int], transport: str
) -> None:
    with world(2, transport) as groups:

        def join(group: Group, after_s: float) -> Group:
            time.sleep(after_s)
            made = group.subgroup(ranks, timeout_s=60.0)
            assert made is not None
            return made

        made = run_threads([lambda: join(groups[0], 0.2), lambda: join(groups[1], 0.0)])
        assert [g.rank for g in made] == ranks
        assert_works(made)
        assert_works(groups)
        close(made)


def test_a_peer_for_a_group_announced_later_is_parked_not_refused() -> None:
    """Rank 2 dials rank 0 for B while rank 0 still forms A with a late rank 1."""
    with world(3, "tcp") as groups:
        knocked = threading.Event()

        def zero() -> list[Group | None]:
            return [groups[0].subgroup([0, 1]), groups[0].subgroup([0, 2])]

        def one() -> list[Group | None]:
            knocked.wait(60.0)
            time.sleep(0.3)  # rank 2 is at the door by now
            return [groups[1].subgroup([0, 1]), groups[1].subgroup([0, 2])]

        def two() -> list[Group | None]:
            first = groups[2].subgroup([0, 1])
            knocked.set()
            return [first, groups[2].subgroup([0, 2])]

        made = run_threads([zero, one, two])
        first = [g for g in (made[0][0], made[1][0]) if g is not None]
        second = [g for g in (made[0][1], made[2][1]) if g is not None]
        assert made[2][0] is made[1][1] is None
        for pair in (first, second):
            assert_works(pair)
            close(pair)


def test_a_group_of_one_needs_nobody() -> None:
    with ringleader.group(loopback(1), 0, timeout_s=SHORT_S) as group:
        assert_works([group])
        assert group.links() == {}


def test_ranks_listen_on_the_first_free_port_of_a_range() -> None:
    first, second = sorted(free_ports(2))
    taken = listen("", first)
    try:
        with pytest.raises(ConfigError, match=f"port {first} is already in use"):
            Listener.open("", range(first, first + 1))
        with listen("", second), pytest.raises(ConfigError, match="widen the range"):
            Listener.open("", range(first, second + 1, second - first))
        listener = Listener.open("", range(first, second + 1))
        assert first < listener.port <= second
        listener.close()
    finally:
        taken.close()


def test_all_groups_of_a_process_share_one_port() -> None:
    """Also ranks that are threads of one process, and groups with the same name."""
    (port,) = free_ports(1)
    options = formation.Options(
        deadline=Deadline.after(60.0), ports=range(port, port + 1)
    )
    stores = [HashStore(), HashStore()]

    def form_both(rank: int) -> list[Group]:
        return [
            formation.over_store(stores[i], rank, 2, "view", options) for i in (0, 1)
        ]

    made = run_threads([lambda: form_both(0), lambda: form_both(1)])
    first, second = zip(*made, strict=True)
    assert_works(first)
    close(first)
    assert_works(second)
    with pytest.raises(ConfigError, match="is already in use"):
        listen("", port)
    close(second)
    listen("", port).close()


FORK = """
import os
from torch.distributed import HashStore
from ringleader.deadline import Deadline
from ringleader.groups import formation
from ringleader.transport.free_ports import free_ports
from ringleader.transport.listening_socket import listen

(port,) = free_ports(1)
options = formation.Options(deadline=Deadline.after(60.0), ports=range(port, port + 1))
group = formation.over_store(HashStore(), 0, 1, "view", options)
reading, writing = os.pipe()
is_running, runs = os.pipe()
child = os.fork()
if not child:
    os.write(runs, b"x")  # what a fork closes, it has closed by now
    os.close(writing)
    os.read(reading, 1)  # ends with the parent's end of the pipe
    os._exit(0)
os.read(is_running, 1)
group.close()
listen("", port).close()
os.close(writing)
print("free", os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
def test_a_forked_child_does_not_keep_the_port(warm_python: WarmPython) -> None:
    output, _ = warm_python.popen("-c", FORK).communicate(timeout=90)
    assert output == "free 0\n"


def test_ctrl_c_ends_the_wait_for_a_peer_in_the_store(warm_python: WarmPython) -> None:
    program = """
import threading
from torch.distributed import HashStore
from ringleader.deadline import Deadline
from ringleader.groups.store_rendezvous import look_up
try:
    threading.Timer(0.5, print, ["waits"], {"flush": True}).start()
    look_up(HashStore(), "rank 1", 1, Deadline.after(600))
except KeyboardInterrupt:
    print("stopped")
"""
    process = warm_python.popen("-c", program)
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=90)[0] == "stopped\n"


def test_the_environment_limits_how_often_a_peer_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Was: only the time-out of the whole forming ended the dialing."""
    monkeypatch.setenv("RINGLEADER_CONNECT_TRIES", "2")
    with pytest.raises(PeerUnreachable, match="did not answer to 2 tries"):
        ringleader.group(loopback(2), 1, timeout_s=3600.0)
