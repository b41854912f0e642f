"""A learner takes the state over while the sources train, and ends with equal bits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import torch

from ringleader.deadline import Deadline
from ringleader.errors import PeerUnreachable
from ringleader.ids import Incarnation, NodeId
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol import framing
from ringleader.node.protocol.hello import PROTOCOL, AgentHello, Purpose
from ringleader.testing.threaded_world import run_threads, world
from ringleader.training.join import live_source, step_messages
from ringleader.training.join.learner import Learner
from ringleader.training.join.live_learner import LiveLearner
from ringleader.training.join.live_source import HELLO_BYTES, LiveSource
from ringleader.training.join.step_messages import (
    LearnerHello,
    SourceReply,
    StepHeader,
    read_message,
)
from ringleader.training.join.upload_pace import UploadPace
from ringleader.training.state.transfer import Roles, transfer_state
from tests.kit.state_members import Member, assert_equal

HELLO = AgentHello(
    protocol=PROTOCOL,
    version="1",
    purpose=Purpose.RUN,
    node=NodeId("a" * 52),
    incarnation=Incarnation("0" * 16),
    started_ms=0,
    name="source",
    port=0,
    clock_s=0.0,
)


SERVING: list[object] = []
"""asyncio keeps no reference to a task that waits."""


async def connected(sock: socket.socket) -> PeerConnection:
    reader, writer = await asyncio.open_connection(sock=sock)
    return PeerConnection(HELLO.node, HELLO, reader, writer, ("", 0))


@contextmanager
def control_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread, as the control thread has one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def cancel_all() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(cancel_all(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def follow(
    member: Member, sources: Sequence[LiveSource], loop: asyncio.AbstractEventLoop
) -> LiveLearner:
    """Let ``member`` follow the sources over socket pairs."""

    async def serve(source: LiveSource, sock: socket.socket) -> None:
        await source.serve(await connected(sock))

    async def dial() -> list[PeerConnection]:
        found = []
        for source in sources:
            if not source._is_closed:
                theirs, mine = socket.socketpair()
                future = asyncio.run_coroutine_threadsafe(serve(source, theirs), loop)
                SERVING.append(future)
                found.append(await connected(mine))
        if not found:
            raise PeerUnreachable("the members of the run", "have ended")
        return found

    learner = LiveLearner(member.state, dial)
    learner.start()
    return learner


class OneByOne(LiveSource):
    """Hands over one parameter after each step."""

    last = -1

    async def _hand_over_next(
        self, writer: asyncio.StreamWriter, learner: Learner
    ) -> StepHeader | None:
        if self._applied == self.last:
            return None
        self.last = self._applied
        return await super()._hand_over_next(writer, learner)


class Withholding(LiveSource):
    """Hands over no parameter: whoever follows it is never level."""

    async def _hand_over_next(
        self, writer: asyncio.StreamWriter, learner: Learner
    ) -> StepHeader | None:
        return None


def source_of(
    member: Member,
    version: Callable[[], int] = lambda: 0,
    kind: type[LiveSource] = LiveSource,
) -> LiveSource:
    source = kind(member.state, version, UploadPace())
    source.attach()
    return source


@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "custom"])
def test_a_learner_becomes_level_while_the_sources_train(optimizer: str) -> None:
    members = [Member(1, optimizer), Member(1, optimizer), Member(2, optimizer)]
    learner_member = members[2]
    for each in members[:2]:
        each.train(2)
    steps = 0
    sources = [source_of(each, lambda: steps, OneByOne) for each in members[:2]]
    gradient = learner_member.model.head.weight.grad = torch.ones(3, 7)
    with control_loop() as loop:
        learner = follow(learner_member, sources, loop)
        limit = Deadline.after(100)
        while not learner.wait_level(0.0) and not limit.is_over():
            for each in members[:2]:
                each.train(1, seed=steps)
            steps += 1
            time.sleep(0.02)
        assert steps >= 4, "each parameter was copied at a version of its own"
        assert learner.finish(steps, Deadline.after(60))
        for source in sources:
            source.close()
    assert learner_member.model.head.weight.grad is gradient
    with world(3) as groups:
        results = run_threads(
            [
                lambda g=g, m=m: transfer_state(  # type: ignore[misc]
                    g, m.state, Roles((0, 1), (2,)), is_warm=m is learner_member
                )
                for g, m in zip(groups, members, strict=True)
            ]
        )
    assert not results[0].repaired
    # Only what no gradient changes had to be copied: BatchNorm's buffers, the EMA.
    assert results[0].copied_bytes == 5 * 4 + 5 * 4 + 8 + 400 * 4
    assert_equal(members[0], learner_member)


def test_the_part_of_a_lost_source_is_taken_from_another() -> None:
    members = [Member(1, "adam"), Member(1, "adam"), Member(2, "adam")]
    for each in members[:2]:
        each.train(2)
    steps = 0
    slow = source_of(members[0], lambda: steps, Withholding)
    other = source_of(members[1], lambda: steps)
    with control_loop() as loop:
        learner = follow(members[2], [slow, other], loop)
        limit = Deadline.after(100)
        while not slow._learners and not limit.is_over():
            time.sleep(0.01)
        for _ in range(2):
            for each in members[:2]:
                each.train(1, seed=steps)
            steps += 1
        slow.close()
        assert learner.wait_level(100.0)
        members[1].train(1, seed=steps)
        steps += 1
        assert learner.finish(steps, limit)
        other.close()
    for name, parameter in members[1].model.named_parameters():
        copied = members[2].model.get_parameter(name)
        assert torch.equal(parameter, copied), name


def test_what_was_damaged_on_the_way_is_found_and_copied_again() -> None:
    """Bits of one parameter and one moment change after they have come."""
    members = [Member(1, "adam"), Member(1, "adam"), Member(2, "adam")]
    for each in members[:2]:
        each.train(2)
    sources = [source_of(each, lambda: 2) for each in members[:2]]
    newcomer = members[2]
    with control_loop() as loop:
        learner = follow(newcomer, sources, loop)
        assert learner.wait_level(100.0)
        for source in sources:
            source.skipped(
                3
            )  # by a loss scaler; learners are at version 3 all the same
        assert learner.finish(3, Deadline.after(100))
        for source in sources:
            source.close()
    weight = newcomer.model.head.weight
    weight.data.view(torch.uint8)[1, 2] ^= 1
    moment = newcomer.optimizer.state[newcomer.model.conv.weight]["exp_avg"]
    moment.mul_(1.5)
    with world(3) as groups:
        results = run_threads(
            [
                lambda g=g, m=m: transfer_state(  # type: ignore[misc]
                    g, m.state, Roles((0, 1), (2,)), is_warm=True
                )
                for g, m in zip(groups, members, strict=True)
            ]
        )
    untrained = 5 * 4 + 5 * 4 + 8 + 400 * 4  # BatchNorm's buffers, the EMA
    damaged = weight.nbytes + moment.nbytes
    assert results[0].copied_bytes == untrained + damaged
    assert_equal(members[0], newcomer)


def test_a_model_that_differs_is_refused_and_lost_sources_end_it() -> None:
    run, other = Member(1, "adam"), Member(2, "adam", classes=4)
    run.train(1)
    with control_loop() as loop:
        learner = follow(other, [source_of(run)], loop)
        assert not learner.wait_level(60.0), "refused, at once"
        again = follow(Member(2, "adam"), [source := source_of(run)], loop)
        run.train(1)
        source.close()
        assert not again.finish(1 << 30, Deadline.after(60)), "the source is gone"
        assert not follow(
            Member(2, "lbfgs"), [source_of(Member(1, "lbfgs"))], loop
        ).finish(0, Deadline.after(60))


@pytest.mark.parametrize(
    "step",
    [
        {"gradients": (0,)},
        {"new": ({"index": 99, "tensors": (), "values": b""},)},
        {"new": ({"index": 0, "tensors": (), "values": b""},)},
        {"new": ({"index": 0, "tensors": (("x", "F32", (1 << 40,)),), "values": b""},)},
    ],
)
def test_a_malicious_source_is_left(step: dict[str, Any]) -> None:
    member = Member(1, "sgd")
    before = member.state.digest().root
    mine, theirs = socket.socketpair()

    async def dial() -> list[PeerConnection]:
        return [await connected(mine)]

    usual = StepHeader(1, b"\x90", (), (), 0, 0)
    learner = LiveLearner(member.state, dial)
    learner.start()
    with theirs:
        for message in (SourceReply(), {**msgspec.to_builtins(usual), **step}):
            body = msgspec.msgpack.encode(message)
            theirs.sendall(len(body).to_bytes(4, "little") + body)
        assert not learner.wait_level(60.0)
    assert member.state.digest().root == before


def test_a_silent_source_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first source is stopped: its connection stays, and nothing comes."""
    monkeypatch.setattr(step_messages, "SILENT_S", 2.0)
    monkeypatch.setattr(live_source, "ALIVE_S", 0.1)
    run, newcomer = Member(1, "adam"), Member(2, "adam")
    run.train(2)
    source = source_of(run)
    told: list[str] = []
    silent, mine = socket.socketpair()
    turns = iter([mine])

    async def dial() -> list[PeerConnection]:
        if (sock := next(turns, None)) is None:
            theirs, sock = socket.socketpair()
            SERVING.append(asyncio.create_task(source.serve(await connected(theirs))))
        return [await connected(sock)]

    learner = LiveLearner(newcomer.state, dial, told.append)
    learner.start()
    with silent:
        assert learner.wait_level(60.0)
        source.close()
        learner.finish(0, Deadline.after(60))
    assert "source: is silent; asking another machine" in told[0]
    for name, tensor in newcomer.model.named_parameters():
        assert torch.equal(tensor, run.model.get_parameter(name)), name


def test_a_source_without_steps_gives_signs_of_life() -> None:
    run = Member(1, "adam")
    source = source_of(run)

    async def listen() -> StepHeader:
        theirs, mine = socket.socketpair()
        serving = asyncio.create_task(source.serve(await connected(theirs)))
        reader, writer = await asyncio.open_connection(sock=mine)
        layout, fingerprint = run.state.layout().digest(), run.state.fingerprint()
        writer.write(framing.pack(LearnerHello(layout, fingerprint, 0, 1)))
        await read_message(reader, "source", SourceReply, 4096)
        while True:
            header = await read_message(reader, "source", StepHeader, 1 << 20)
            if not header.new:
                break
            for entry in header.new[0].tensors:
                await reader.readexactly(entry.num_bytes)
        writer.close()
        await serving
        return header

    header = asyncio.run(asyncio.wait_for(listen(), 60))
    assert (header.gradients, header.num_left, header.backlog) == ((), 0, 0)
    source.close()


class SlowLink:
    """What a source sends arrives at a rate; ``bytes_per_s`` 0: nothing more does."""

    def __init__(self, source: LiveSource, loop: asyncio.AbstractEventLoop) -> None:
        self.bytes_per_s = 2e6
        self._source, self._loop = source, loop
        self._carriers: list[threading.Thread] = []

    def close(self) -> None:
        """Wait until both ends of all links are closed."""
        for each in self._carriers:
            each.join(60)

    async def dial(self) -> list[PeerConnection]:
        (theirs, near), (far, mine) = socket.socketpair(), socket.socketpair()
        for sock in (theirs, near, far, mine):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)

        async def serve() -> None:
            await self._source.serve(await connected(theirs))

        SERVING.append(asyncio.run_coroutine_threadsafe(serve(), self._loop))
        carrier = threading.Thread(target=self._carry, args=(near, far))
        carrier.start()
        self._carriers.append(carrier)
        return [await connected(mine)]

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, contextlib.suppress(OSError):
            near.sendall(far.recv(HELLO_BYTES))
            while data := near.recv(1 << 14):
                while not self.bytes_per_s:
                    time.sleep(0.01)
                time.sleep(len(data) / self.bytes_per_s)
                far.sendall(data)


def test_steps_wait_for_a_learner_whose_link_is_slow() -> None:
    """It gets the state all the same, and no step waits for more than its share."""
    classes = 30_000
    run, newcomer = Member(1, "adam", classes), Member(2, "adam", classes)
    run.train(2)
    steps = 0
    source = source_of(run, lambda: steps)
    waits: list[float] = []
    with control_loop() as loop:
        link = SlowLink(source, loop)
        learner = LiveLearner(newcomer.state, link.dial)
        learner.start()
        limit = Deadline.after(300)
        while not learner.wait_level(0.0) and not limit.is_over():
            run.train(1, seed=steps)
            steps += 1
            began_s = time.monotonic()
            source.wait_for_learners(lambda: False)
            waits.append(time.monotonic() - began_s)
        assert learner.finish(steps, limit)
        source.close()
        link.close()
    assert max(waits) > 0.1, "the link is slower than the steps"
    for name, parameter in run.model.named_parameters():
        assert torch.equal(parameter, newcomer.model.get_parameter(name)), name


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Owing:
    """A learner that gets a MB in a second, beside all others."""

    def __init__(self, clock: Clock, num_bytes: float) -> None:
        self._clock, self._num_bytes, self._begin_s = clock, num_bytes, clock.now_s

    @property
    def moved_s(self) -> float:
        return self._clock.now_s

    @property
    def owed(self) -> float:
        return max(0.0, self._num_bytes - 1e6 * (self._clock.now_s - self._begin_s))


def test_a_learner_is_not_dropped_for_the_time_that_another_one_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(live_source, "time", clock)
    source = source_of(Member(1, "adam"))
    learners: list[Any] = [Owing(clock, 20e6), Owing(clock, 21e6)]
    source._learners = list(learners)
    source.wait_for_learners(lambda: False)
    assert source._learners == learners
    assert [learner.owed for learner in learners] == [0, 0]


@pytest.mark.parametrize(
    ("bytes_per_s", "stalled_s", "slowest"), [(0.0, 0.5, 1.0), (1e5, 0.0, 1e12)]
)
def test_steps_do_not_wait_for_a_learner_whose_link_carries_nothing(
    bytes_per_s: float,
    stalled_s: float,
    slowest: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither for one that is far too slow: it is told that it copies."""
    monkeypatch.setattr(live_source, "STALLED_S", stalled_s)
    monkeypatch.setattr(live_source, "SLOWEST", slowest)
    run, newcomer = Member(1, "adam", 30_000), Member(2, "adam", 30_000)
    run.train(2)
    source = source_of(run)
    with control_loop() as loop:
        link = SlowLink(source, loop)
        learner = LiveLearner(newcomer.state, link.dial)
        learner.start()
        limit = Deadline.after(300)
        while not source.has_learners and not limit.is_over():
            time.sleep(0.01)
        link.bytes_per_s = bytes_per_s
        while source.has_learners and not limit.is_over():
            run.train(1)
            source.wait_for_learners(lambda: False)
        assert not source.has_learners
        link.bytes_per_s = 1e9
        if bytes_per_s:
            learner._thread.join(limit.left_s())
            assert not learner._thread.is_alive(), "refused, when it asked again"
        else:
            assert learner.wait_level(60.0), "it asked again, and gets all of it"
        learner.finish(1 << 30, Deadline.after(0.0))
        source.close()
        link.close()
