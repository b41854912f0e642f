"""Pairing over real sockets: the honest machine, the guesser, and the attacker.

The second half runs the commands as processes, as two users on two machines would.
"""

from __future__ import annotations

import io
import json
import os
import pty
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import (
    ExitStack,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

import ringleader.cli.join
from ringleader.cli.init import init
from ringleader.cli.invite import invite
from ringleader.cli.join import join
from ringleader.cli.leave import leave
from ringleader.deadline import Deadline
from ringleader.discovery import pairing_announcement
from ringleader.errors import (
    ConfigError,
    DeadlineExceeded,
    PeerError,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.known_nodes import KnownNode
from ringleader.identity.node_key import NodeKey
from ringleader.identity.pairing import invitation, join_client
from ringleader.identity.pairing.attempt_window import AttemptWindow, InvitationOutcome
from ringleader.identity.pairing.invitation import (
    Invitation,
    InvitationEvent,
    Joined,
    PinShown,
)
from ringleader.identity.pairing.join_client import join_at, new_pin, pack, unpack
from ringleader.identity.pairing.protocol import (
    PairingHost,
    PairingJoiner,
    PairingResult,
)
from ringleader.identity.secret_value import Secret
from ringleader.simulation.lan import can_make_lan, lan

PATIENCE_S = 120.0
CLUSTER = ClusterSecret(root=Secret(b"r" * 32), name="home")


@dataclass
class InvitingHost:
    """A machine that invites, in a thread of this process."""

    address: tuple[str, int]
    key: NodeKey
    window: AttemptWindow
    events: list[InvitationEvent] = field(default_factory=list)
    recorded: list[KnownNode] = field(default_factory=list)
    outcome: InvitationOutcome | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def tell(self, event: InvitationEvent) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def pin(self, number: int = 0) -> Secret[str]:
        """The ``number``-th PIN, as soon as it is shown."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.pins()) > number, PATIENCE_S)
            return self.pins()[number].pin

    def pins(self) -> list[PinShown]:
        return [event for event in self.events if isinstance(event, PinShown)]

    def end(self) -> InvitationOutcome:
        with self.changed:
            assert self.changed.wait_for(lambda: self.outcome is not None, PATIENCE_S)
            assert self.outcome is not None
            return self.outcome

    def joined(self) -> Joined:
        (found,) = (event for event in self.events if isinstance(event, Joined))
        return found


@contextmanager
def inviting_host(length_s: float = 500.0) -> Iterator[InvitingHost]:
    key = NodeKey.ephemeral()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        window = AttemptWindow.open_at(time.monotonic(), new_pin, length_s=length_s)
        it = InvitingHost(server.getsockname(), key, window)
        serving = Invitation(
            server,
            window,
            lambda address: PairingHost(key, "desk", CLUSTER, peer=address),
            it.recorded.append,
            it.tell,
        )

        def serve() -> None:
            outcome = serving.serve()
            with it.changed:
                it.outcome = outcome
                it.changed.notify_all()

        thread = threading.Thread(target=serve, name="invitation")
        thread.start()
        try:
            yield it
        finally:
            window.until_s = 0.0
            with socket.create_connection(it.address):  # wake it, so that it looks
                thread.join(PATIENCE_S)
            assert not thread.is_alive()


def wrong(pin: Secret[str]) -> Secret[str]:
    return Secret(f"{(int(pin.reveal()) + 1) % 10**6:06}")


def join_with_pin(it: InvitingHost, pin: Secret[str]) -> PairingResult:
    return join_at(it.address, NodeKey.ephemeral(), "laptop", pin)


class RawJoiner:
    """A joining machine that sends arbitrary frames, one by one."""

    def __init__(self, it: InvitingHost, pin: Secret[str] | None = None) -> None:
        self.sock = socket.create_connection(it.address)
        self.sock.settimeout(PATIENCE_S)
        self.joiner = PairingJoiner(
            NodeKey.ephemeral(), "visitor", pin or Secret("000000")
        )

    def __enter__(self) -> RawJoiner:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def say(self, frame: bytes) -> None:
        self.sock.sendall(pack(frame))

    def hear(self) -> bytes | None:
        """The next frame; None when hung up on."""
        inbox = bytearray()
        while (frame := unpack(inbox, "desk")) is None:
            try:
                block = self.sock.recv(600)
            except ConnectionResetError:
                return None
            if not block:
                return None
            inbox += block
        return frame

    def until_element(self) -> bytes:
        """M3, after the hellos."""
        self.say(self.joiner.hello())
        m2 = self.hear()
        assert m2 is not None
        return self.joiner.answer_hello(m2)

    def until_proof(self) -> bytes:
        """M5, after the elements."""
        self.say(self.until_element())
        m4 = self.hear()
        assert m4 is not None
        return self.joiner.answer_element(m4)


# -- the honest machine ------------------------------------------------------------


def test_the_right_pin_brings_the_secret() -> None:
    with inviting_host() as it:
        begun_s = time.monotonic()
        welcome = join_with_pin(it, it.pin())
        assert time.monotonic() - begun_s >= invitation.MIN_ANSWER_S
        assert it.end() is InvitationOutcome.JOINED
    assert welcome.cluster.root == CLUSTER.root
    assert welcome.host == KnownNode(it.key.node_id, "desk")
    assert it.joined().has_thanked
    assert it.recorded == [it.joined().member]
    assert it.recorded[0].name == "laptop"


def test_wrong_pin_outdated_pin_right_pin() -> None:
    with inviting_host() as it:
        first = it.pin(0)
        with pytest.raises(PeerUntrusted, match="use the new PIN on the other screen"):
            join_with_pin(it, wrong(first))
        second = it.pin(1)
        assert second != first
        with pytest.raises(PeerUntrusted, match="the PIN was refused"):
            join_with_pin(it, first)
        third = it.pin(2)
        assert join_with_pin(it, third).cluster.name == "home", (
            "the last attempt counts"
        )
        assert it.end() is InvitationOutcome.JOINED
    shown = [(event.attempts_left, event.trouble) for event in it.pins()]
    assert shown == [
        (3, ""),
        (2, "a wrong PIN was tried"),
        (1, "a wrong PIN was tried"),
    ]


def test_only_one_machine_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    with inviting_host() as it:
        pin = it.pin()
        join_with_pin(it, pin)
        assert it.end() is InvitationOutcome.JOINED
        monkeypatch.setattr(join_client, "STEP_S", 0.3)
        with pytest.raises(PeerError):
            join_with_pin(it, pin)
    assert len(it.recorded) == 1


# -- the guesser -------------------------------------------------------------------


def test_three_wrong_pins_close_the_window() -> None:
    with inviting_host() as it:
        for number in range(3):
            with pytest.raises(PeerUntrusted):
                join_with_pin(it, wrong(it.pin(number)))
        assert it.end() is InvitationOutcome.EXHAUSTED
    assert len({event.pin.reveal() for event in it.pins()}) >= 2
    assert not it.recorded


@pytest.mark.parametrize("leaves", ["with the answer", "before the answer"])
def test_an_attempt_that_is_broken_off_counts(leaves: str) -> None:
    with inviting_host() as it:
        for number in range(3):
            it.pin(number)
            with RawJoiner(it) as guesser:
                guesser.say(guesser.until_element())
                if leaves == "with the answer":
                    assert guesser.hear() is not None
        assert it.end() is InvitationOutcome.EXHAUSTED
    assert [event.attempts_left for event in it.pins()] == [3, 2, 1]
    assert it.pins()[1].trouble == "an attempt was broken off"


def test_runs_follow_one_another() -> None:
    """A second machine gets no answer while the first is in its run."""
    with inviting_host() as it, RawJoiner(it) as first, RawJoiner(it) as second:
        first_proof = first.until_proof()
        second.say(second.until_element())
        second.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            second.hear()
        second.sock.settimeout(PATIENCE_S)
        first.say(first_proof)
        assert first.hear() is None
        assert second.hear() is not None, "now it is its turn"
    assert [event.attempts_left for event in it.pins()][:2] == [3, 2]


def test_many_at_once_spend_three_attempts_and_no_more() -> None:
    with inviting_host() as it, ExitStack() as stack:
        guessers = [stack.enter_context(RawJoiner(it)) for _ in range(8)]
        for guesser in guessers:
            guesser.say(guesser.until_element())
        answered = 0
        for guesser in guessers:
            m4 = guesser.hear()
            if m4 is not None:
                answered += 1
                guesser.say(guesser.joiner.answer_element(m4))
                assert guesser.hear() is None
        assert answered == 3
        assert it.end() is InvitationOutcome.EXHAUSTED
    assert not it.recorded


def test_the_answer_to_an_element_takes_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(invitation, "MIN_ANSWER_S", 0.6)
    with inviting_host() as it, RawJoiner(it) as guesser:
        m3 = guesser.until_element()
        begun_s = time.monotonic()
        guesser.say(m3)
        assert guesser.hear() is not None
        assert 0.6 <= time.monotonic() - begun_s < 60


# -- the attacker --------------------------------------------------------------------


def raw_frames() -> dict[str, bytes]:
    public = NodeKey.ephemeral().public
    hello = msgspec.msgpack.encode([1, bytes(16), public])
    return {
        "an empty frame": b"\0\0",
        "a huge frame": b"\xff\xff" + bytes(600),
        "513 bytes": (513).to_bytes(2, "big") + bytes(513),
        "not msgpack": pack(b"\xc1" * 40),
        "nested": pack(b"\x91" * 512),
        "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "TLS": bytes.fromhex("16030100a5010000a1") + bytes(160),
        "two frames at once": pack(hello) * 2,
        "version 2": pack(msgspec.msgpack.encode([2, bytes(16), public])),
        "one field more": pack(msgspec.msgpack.encode([1, bytes(16), public, 0])),
    }


@pytest.mark.parametrize("kind", raw_frames())
def test_a_wrong_byte_is_hung_up_on_and_costs_nothing(kind: str) -> None:
    with inviting_host() as it:
        with RawJoiner(it) as attacker:
            attacker.sock.sendall(raw_frames()[kind])
            assert attacker.hear() is None
        with RawJoiner(it) as attacker:
            attacker.until_element()
            attacker.sock.sendall(raw_frames()[kind])
            assert attacker.hear() is None
        assert join_with_pin(it, it.pin()).cluster.root == CLUSTER.root
    assert len(it.pins()) == 1, "no attempt was spent"


def test_a_crowd_of_silent_connections_keeps_nobody_out() -> None:
    with inviting_host() as it, ExitStack() as stack:
        pin = it.pin()
        for _ in range(60):
            stack.enter_context(socket.create_connection(it.address))
        begun_s = time.monotonic()
        assert join_with_pin(it, pin).cluster.root == CLUSTER.root
        assert time.monotonic() - begun_s < 60


def test_only_a_few_are_kept_waiting_and_the_oldest_goes() -> None:
    with inviting_host() as it, ExitStack() as stack:
        it.pin()
        crowd = [stack.enter_context(RawJoiner(it)) for _ in range(12)]
        for early in crowd[:4]:
            assert early.hear() is None
        for late in crowd[4:]:
            late.until_element()


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitation, "STEP_S", 0.3)
    with inviting_host() as it, RawJoiner(it) as silent:
        begun_s = time.monotonic()
        assert silent.hear() is None
        assert 0.2 < time.monotonic() - begun_s < 60


def test_a_connection_that_drips_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not buy time: a step is a whole frame."""
    monkeypatch.setattr(invitation, "STEP_S", 0.5)
    with inviting_host() as it, RawJoiner(it) as slow:
        frame = pack(slow.joiner.hello())
        begun_s = time.monotonic()
        for byte in frame:
            with suppress(ConnectionError):
                slow.sock.sendall(bytes([byte]))
            time.sleep(0.03)
        assert slow.hear() is None
        assert time.monotonic() - begun_s > 1.0, "it spoke for longer than a step"


def test_a_machine_that_stalls_in_its_run_loses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(invitation, "STEP_S", 8.0)
    with inviting_host() as it, RawJoiner(it) as slow:
        slow.until_proof()
        assert slow.hear() is None
        assert join_with_pin(it, it.pin(1)).cluster.root == CLUSTER.root
    assert it.pins()[1].trouble == "an attempt was broken off"


def test_the_whole_run_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitation, "TOTAL_S", 8.0)
    with inviting_host() as it, RawJoiner(it) as slow:
        slow.until_proof()
        assert slow.hear() is None


def test_the_window_closes_in_time() -> None:
    with inviting_host(length_s=0.3) as it:
        begun_s = time.monotonic()
        assert it.end() is InvitationOutcome.EXPIRED
        assert time.monotonic() - begun_s < 60


def test_a_run_that_began_in_time_is_finished() -> None:
    with inviting_host() as it, RawJoiner(it, it.pin()) as late:
        proof = late.until_proof()
        it.window.until_s = 0.0
        late.say(proof)
        m6 = late.hear()
        assert m6 is not None
        late.say(late.joiner.answer_welcome(m6)[0])
        assert it.end() is InvitationOutcome.JOINED


def test_a_machine_that_does_not_thank_has_joined_all_the_same() -> None:
    with inviting_host() as it:
        with RawJoiner(it, it.pin()) as hasty:
            hasty.say(hasty.until_proof())
            assert hasty.hear() is not None
        assert it.end() is InvitationOutcome.JOINED
    assert not it.joined().has_thanked
    assert it.recorded, "the secret has left"


def test_what_cannot_be_recorded_is_not_given_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        window = AttemptWindow.open_at(time.monotonic(), new_pin)
        it = InvitingHost(server.getsockname(), NodeKey.ephemeral(), window)

        def full_disk(_: KnownNode) -> None:
            raise ConfigError("the disk is full")

        serving = Invitation(
            server,
            window,
            lambda address: PairingHost(it.key, "desk", CLUSTER, peer=address),
            full_disk,
            it.tell,
        )
        caught: list[ConfigError] = []

        def serve() -> None:
            try:
                serving.serve()
            except ConfigError as error:
                caught.append(error)

        thread = threading.Thread(target=serve, name="invitation")
        thread.start()
        with RawJoiner(it, it.pin()) as visitor:
            visitor.say(visitor.until_proof())
            assert visitor.hear() is None
        thread.join(PATIENCE_S)
    assert [error.text for error in caught] == ["the disk is full"]


# -- what the joining machine meets ------------------------------------------------


@contextmanager
def false_host(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """A host that sends arbitrary answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                sock.settimeout(PATIENCE_S)
                try:
                    answer(sock)
                except OSError:
                    return

        thread = threading.Thread(target=serve, name="false inviting_host")
        thread.start()
        yield server.getsockname()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def join_false(address: tuple[str, int]) -> PairingResult:
    return join_at(address, NodeKey.ephemeral(), "laptop", Secret("123456"))


def test_nobody_there_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    with pytest.raises(PeerUnreachable, match=r"cannot be reached.*does it invite"):
        join_false(address)


def test_somebody_who_hangs_up_is_said_so() -> None:
    with (
        false_host(lambda sock: None) as address,
        pytest.raises(PeerRefused, match=r"hung up.*ringleader invite"),
    ):
        join_false(address)


@pytest.mark.parametrize("kind", raw_frames())
def test_garbage_from_the_host_ends_it(kind: str) -> None:
    with (
        false_host(lambda sock: sock.sendall(raw_frames()[kind])) as address,
        pytest.raises((ProtocolError, PeerRefused)),
    ):
        join_false(address)


@pytest.mark.parametrize("says", [b"", b"\x00\x40"])
def test_a_silent_host_costs_a_step(
    monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    monkeypatch.setattr(join_client, "STEP_S", 0.4)

    def stay(sock: socket.socket) -> None:
        sock.sendall(says)
        while sock.recv(100):
            pass

    begun_s = time.monotonic()
    with (
        false_host(stay) as address,
        pytest.raises(DeadlineExceeded, match="did not answer"),
    ):
        join_false(address)
    assert time.monotonic() - begun_s < 60


def test_a_dripping_host_costs_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_client, "STEP_S", 0.4)

    def drip(sock: socket.socket) -> None:
        sock.sendall(b"\x01\x00")
        deadline = Deadline.after(60)
        while not deadline.is_over():
            sock.sendall(b"\x91")
            time.sleep(0.02)

    begun_s = time.monotonic()
    with false_host(drip) as address, pytest.raises(DeadlineExceeded):
        join_false(address)
    assert time.monotonic() - begun_s < 30


def test_a_relay_of_bytes_joins_them_and_learns_nothing() -> None:
    seen = bytearray()
    with inviting_host() as it, socket.create_server(("127.0.0.1", 0)) as server:

        def copy(source: socket.socket, target: socket.socket) -> None:
            while block := source.recv(100):
                seen.extend(block)
                target.sendall(block)
            target.shutdown(socket.SHUT_WR)

        def relay() -> None:
            near, _ = server.accept()
            with near, socket.create_connection(it.address) as far:
                back = threading.Thread(target=copy, args=(far, near), name="back")
                back.start()
                copy(near, far)
                back.join(PATIENCE_S)

        thread = threading.Thread(target=relay, name="relay")
        thread.start()
        key = NodeKey.ephemeral()
        welcome = join_at(server.getsockname(), key, "laptop", it.pin())
        assert it.end() is InvitationOutcome.JOINED
        thread.join(PATIENCE_S)
    assert welcome.host.node == it.key.node_id
    assert it.recorded[0].node == key.node_id
    assert CLUSTER.root.reveal() not in seen


# -- the commands ------------------------------------------------------------------

app = typer.Typer(pretty_exceptions_enable=False)
for command in (init, invite, join, leave):
    app.command()(command)


@dataclass
class Done:
    """What a command left on the screen, and how it ended."""

    returncode: int
    stdout: str
    stderr: str


@dataclass
class Machine:
    """A user's account, with a home of its own."""

    home: Path

    def argv(self, *words: str) -> list[str]:
        verb = words[0]
        code = f"import typer, ringleader.cli.{verb} as c; typer.run(c.{verb})"
        return [sys.executable, "-c", code, *words[1:]]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "RINGLEADER_HOME": str(self.home)}

    def run(self, *words: str, typed: str = "") -> Done:
        """A command in this process, which saves the start of another one."""
        out, err = io.StringIO(), io.StringIO()
        patch = pytest.MonkeyPatch()
        code: str | int | None = None
        read, write = os.pipe()
        with patch.context() as here, open(read) as stdin:
            os.write(write, typed.encode())
            os.close(write)
            here.setattr(sys, "stdin", stdin)
            here.setenv("RINGLEADER_HOME", str(self.home))
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    app(words)
                except SystemExit as end:
                    code = end.code
        assert isinstance(code, int)
        return Done(code, out.getvalue(), err.getvalue())

    def run_json(self, *words: str, typed: str = "") -> dict[str, Any]:
        done = self.run(*words, "--json", typed=typed)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    @contextmanager
    def invites(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        argv = self.argv("invite", "--json", *words)
        pipe = subprocess.PIPE
        with subprocess.Popen(
            argv, env=self.environment(), stdout=pipe, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def machines(tmp_path: Path) -> list[Machine]:
    return [Machine(tmp_path / name) for name in ("desk", "laptop", "attic")]


def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


def test_a_phrase_is_printed_here_and_typed_there(machines: list[Machine]) -> None:
    first, second, third = machines
    made = first.run("init", "--name", "flat")
    assert made.returncode == 0, made.stderr
    assert 'Cluster "flat"' in made.stdout
    assert "not stored and cannot be shown again" in made.stdout
    (phrase,) = (text for text in made.stdout.split() if text.count("-") == 8)
    joined = second.run("join", typed=phrase.replace("-", " ").upper() + "\n")
    assert joined.returncode == 0, joined.stderr
    tags = [text for text in made.stdout.split() if text.startswith("(")]
    assert tags[0].strip("()") in joined.stdout
    assert joined.stderr == ""
    by_words = third.run("join", *phrase.split("-"))
    assert by_words.returncode == 0
    assert "other users can see the phrase" in by_words.stderr
    assert "Already in" in third.run("join", phrase).stdout
    for done in (joined, by_words):
        assert phrase not in done.stdout + done.stderr
    for machine in machines:
        assert phrase.encode() not in (machine.home / "cluster").read_bytes()


def test_a_phrase_can_come_from_a_file(machines: list[Machine]) -> None:
    first, second, third = machines
    phrase = first.run_json("init")["phrase"]
    file = first.home / "phrase"
    file.write_text(phrase + "\n")
    file.chmod(0o644)
    refused = second.run("join", "--phrase-file", str(file))
    assert refused.returncode == 2
    assert "chmod 600" in refused.stderr
    file.chmod(0o600)
    assert second.run("join", "--phrase-file", str(file)).returncode == 0
    piped = third.run("join", "--phrase-file", "-", typed=phrase + "\n")
    assert piped.returncode == 0, piped.stderr


@pytest.mark.parametrize(
    ("words", "typed", "text"),
    [
        (["join"], "", "no phrase; type it when asked, pipe it in"),
        (["join"], "my own phrase\n", "is not in the list"),
        (["join", "--pin", "acorn"], "", "the phrase or a PIN, not both"),
        (["join", "--at", "desk:1"], "", "add --pin"),
        (["join", "--pin", "--at", "desk"], "", "write host:port"),
        (["join", "--pin", "--at", "127.0.0.1:9"], "12345\n", "a PIN has six digits"),
        (["join", "--phrase-file", "/nowhere"], "", "file /nowhere not found"),
        (["invite"], "", "in no cluster; run 'ringleader init'"),
        (["leave"], "", "pass --yes"),
        (["init", "--name", "\a"], "", "at least one letter"),
    ],
)
def test_a_request_that_makes_no_sense_ends_with_2(
    machines: list[Machine], words: list[str], typed: str, text: str
) -> None:
    done = machines[0].run(*words, typed=typed)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not (machines[0].home / "cluster").exists()


def test_a_machine_is_in_one_cluster(machines: list[Machine]) -> None:
    first, second, _ = machines
    phrase = first.run_json("init")["phrase"]
    second.run_json("init", "--name", "other")
    for words in (["init"], ["join"], ["join", "--pin", "--at", "127.0.0.1:9"]):
        done = second.run(*words, typed=phrase + "\n")
        assert done.returncode == 2
        assert 'in cluster "other"' in done.stderr
    replaced = second.run_json("join", "--force", typed=phrase + "\n")
    assert replaced["tag"] == first.run_json("join", typed=phrase + "\n")["tag"]


def test_a_pin_brings_a_machine_in(machines: list[Machine]) -> None:
    first, second, _ = machines
    made = first.run_json("init", "--name", "flat")
    with first.invites() as inviting:
        at = ["--pin", "--at", f"127.0.0.1:{line(inviting)['port']}"]
        pin = str(line(inviting)["pin"])
        refused = second.run("join", *at, typed=f"{(int(pin) + 1) % 10**6:06}\n")
        assert refused.returncode == 1
        assert "use the new PIN on the other screen" in refused.stderr
        again = line(inviting)
        assert again["attempts_left"] == 2
        assert again["trouble"] == "a wrong PIN was tried"
        pin = str(again["pin"])
        joined = second.run_json("join", *at, typed=f" {pin[:3]} {pin[3:]}\n")
        told = line(inviting)
        assert line(inviting) == {"outcome": "joined"}
        assert inviting.wait(PATIENCE_S) == 0
    assert joined["cluster"] == "flat"
    assert joined["tag"] == made["tag"]
    assert joined["through"]["node"] == made["node"]
    assert told["has_thanked"] is True
    assert told["joined"]["node"] == joined["node"]
    for machine, other in ((first, joined), (second, made)):
        known = json.loads((machine.home / "known_nodes").read_text())
        assert list(known["nodes"]) == [other["node"]]


IS_POSSIBLE, REASON = can_make_lan()


@pytest.mark.skipif(not IS_POSSIBLE, reason=f"no LAN here: {REASON}")
def test_machines_on_a_lan_find_each_other(machines: list[Machine]) -> None:
    """The joining machine finds the window by mDNS, without an address."""
    first, second, _ = machines
    made = first.run_json("init", "--name", "flat")
    pipe = subprocess.PIPE
    with lan(2) as net, ExitStack() as stack:

        def start(at: int, machine: Machine, *words: str) -> subprocess.Popen[str]:
            process = net.hosts[at].popen(
                machine.argv(*words, "--json"),
                env={**machine.environment(), "RINGLEADER_NAME": machine.home.name},
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                text=True,
            )
            return stack.enter_context(process)

        inviting = start(0, first, "invite")
        assert line(inviting)["discovery"] is None
        pin = str(line(inviting)["pin"])
        joining = start(1, second, "join", "--pin")
        out, err = joining.communicate(f"{pin}\n", timeout=PATIENCE_S)
        assert joining.returncode == 0, err
        assert f"A machine at {net.hosts[0].address} is pairing." in err
        assert json.loads(out)["tag"] == made["tag"]
        assert line(inviting)["joined"]["name"] == "laptop"
        assert inviting.wait(PATIENCE_S) == 0


def test_when_nobody_invites_the_mend_is_named(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ringleader.cli.join, "_SEARCH_S", 0.2)
    # Tests that run beside this one on this network may invite.
    monkeypatch.setattr(pairing_announcement, "SERVICE", "_ringleader-none._tcp.local.")
    done = machines[0].run("join", "--pin", typed="123456\n")
    assert done.returncode == 1
    assert "pass --at HOST:PORT" in done.stderr


def test_an_invitation_that_nobody_takes_ends_with_1(machines: list[Machine]) -> None:
    machines[0].run_json("init")
    done = machines[0].run("invite", "--seconds", "1")
    assert done.returncode == 1
    assert "PIN " in done.stdout
    assert "valid 1 seconds - attempts left 3" in done.stdout
    assert "No machine joined in time. Pairing closed." in done.stdout


def test_leaving_deletes_and_says_what_it_cannot(machines: list[Machine]) -> None:
    machine = machines[0]
    made = machine.run_json("init")
    done = machine.run("leave", "--yes")
    assert done.returncode == 0
    assert "Copies of the secret stay valid" in done.stdout
    assert os.listdir(machine.home) == ["lock"]
    assert machine.run_json("leave", "--yes") == {"left": None}
    assert machine.run_json("init")["node"] != made["node"]


def at_a_terminal(machine: Machine, words: list[str], typed: bytes) -> tuple[int, str]:
    """Run a command at a terminal with typed input."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            machine.argv(*words),
            env=machine.environment(),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            theirs = -1
            os.write(ours, typed)
            shown = b""
            try:
                while block := os.read(ours, 1000):
                    shown += block
            except OSError:  # how a terminal says that nobody is there any more
                pass
            return process.wait(PATIENCE_S), shown.decode()
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


def test_people_are_asked_at_a_terminal(machines: list[Machine]) -> None:
    first, second, _ = machines
    phrase = first.run_json("init")["phrase"]
    code, shown = at_a_terminal(second, ["join"], f"{phrase}\n".encode())
    assert code == 0, shown
    assert "Phrase: " in shown
    code, shown = at_a_terminal(second, ["leave"], b"n\n")
    assert code == 2
    assert "? [y/N]" in shown
    assert "nothing was deleted" in shown
    code, shown = at_a_terminal(second, ["leave"], b"y\n")
    assert code == 0
    assert not (second.home / "cluster").exists()


@pytest.mark.slow
def test_a_wrong_pin_may_be_typed_again_at_a_terminal(machines: list[Machine]) -> None:
    first, second, _ = machines
    first.run_json("init")
    with first.invites() as inviting:
        at = ["join", "--pin", "--at", f"127.0.0.1:{line(inviting)['port']}"]
        pin = str(line(inviting)["pin"])
        wrong_pin = f"{(int(pin) + 1) % 10**6:06}\n".encode()
        code, shown = at_a_terminal(second, at, wrong_pin * 3)
        assert line(inviting)["attempts_left"] == 2
        assert line(inviting)["attempts_left"] == 1
        assert line(inviting) == {"outcome": "exhausted"}
        assert inviting.wait(PATIENCE_S) == 1
    assert code == 1
    assert shown.count("Type the PIN it shows: ") == 3
    assert "Use the new PIN on the other screen" in shown or "PIN was refused" in shown
