"""LiveSource: serves the state of a member to learners while it trains.

Hooks of the optimizer copy what a learner needs between two steps; a coroutine on the
control thread sends it, at a limited rate. The training never waits for a learner: one
that does not keep up is dropped, and gets the state by pause and copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from ringleader.checkpoint import values
from ringleader.errors import RingleaderError
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol import framing
from ringleader.training.join.step_messages import (
    LearnerHello,
    NewParameter,
    SourceReply,
    StepHeader,
    read_message,
)
from ringleader.training.state import model_part
from ringleader.training.state.optimizer_part import PREFIX, OptimizerPart, is_plain
from ringleader.training.state.pieces import share_out
from ringleader.training.state.replicated_state import ReplicatedState

_log = logging.getLogger(__name__)

RATE: Final = 36e6
"""Bytes per second that learners get: 30 % of 1 Gbit/s."""

MAX_BACKLOG_BYTES: Final = 1 << 30
"""A learner that is so far behind is dropped."""

MAX_LEARNERS: Final = 4
HELLO_BYTES: Final = 4096
_CHUNK_BYTES: Final = 1 << 18


class _Pace:
    """Limits the bytes per second of all learners together."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._free_s = 0.0

    async def sent(self, num_bytes: int) -> None:
        """Wait until the next bytes may follow these."""
        now_s = time.monotonic()
        self._free_s = max(self._free_s, now_s) + num_bytes / self.rate
        if self._free_s - now_s > 0.01:
            await asyncio.sleep(self._free_s - now_s)


class _Learner:
    """One learner: what it has, what it lacks, and what is on its way.

    ``stage`` is called by the user's thread, the rest by the control thread.
    """

    def __init__(self, name: str, mine: list[int]) -> None:
        self.name = name
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[tuple[bytes, list[Tensor]] | None] = asyncio.Queue()
        self.todo = deque(mine)
        self.held: list[int] = []
        self.gradients: list[tuple[int, Tensor]] = []
        self.groups = b""
        self.last_s = time.monotonic()
        self._backlog = 0
        self._lock = threading.Lock()

    @property
    def backlog(self) -> int:
        """Bytes that were staged and not sent yet."""
        with self._lock:
            return self._backlog

    def put(self, header: bytes, payload: list[Tensor]) -> None:
        """Queue a step."""
        with self._lock:
            self._backlog += sum(part.nbytes for part in payload)
        self._call((header, payload))

    def drop(self) -> None:
        """End the connection after what is queued."""
        self._call(None)

    def sent(self, num_bytes: int) -> None:
        """Count bytes that were sent."""
        with self._lock:
            self._backlog -= num_bytes

    def _call(self, item: tuple[bytes, list[Tensor]] | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)


class LiveSource:
    """Serves learners from the state of this member."""

    def __init__(
        self, state: ReplicatedState, version: Callable[[], int], rate: float = RATE
    ) -> None:
        self._optimizer = state.optimizer
        self._parameters = list(state.model.named_parameters())
        self._moments = OptimizerPart(state.model, state.optimizer)
        self._layout = state.layout().digest()
        self._fingerprint = state.fingerprint()
        self._version = version
        self._usual_rate = rate
        self._pace = _Pace(rate)
        self._learners: list[_Learner] = []
        self._hooks: list[Any] = []
        self._is_closed = False

    def attach(self) -> None:
        """Begin to follow the optimizer's steps."""
        before, after = self._before_step, self._after_step
        self._hooks = [
            self._optimizer.register_step_pre_hook(lambda *_: before()),
            self._optimizer.register_step_post_hook(lambda *_: after()),
        ]

    def close(self) -> None:
        """Stop, and end the connections of all learners."""
        self._is_closed = True
        for hook in self._hooks:
            hook.remove()
        for learner in list(self._learners):
            learner.drop()

    def hurry(self, *, is_hurried: bool = True) -> None:
        """Send as fast as possible: training waits for a learner to become level."""
        self._pace.rate = 1e12 if is_hurried else self._usual_rate

    # -- the user's thread: hooks of the optimizer -------------------------------------

    def _before_step(self) -> None:
        for learner in list(self._learners):
            learner.gradients = [
                (index, _bytes_of(gradient))
                for index in learner.held
                if (gradient := self._parameters[index][1].grad) is not None
            ]
            learner.groups = values.encode(self._moments.hyperparameters())

    def _after_step(self) -> None:
        for learner in list(self._learners):
            if learner.groups:  # it was there before the step
                self._stage(learner)
            if learner.backlog > MAX_BACKLOG_BYTES:
                _log.warning("%s cannot follow the run and is dropped", learner.name)
                learner.drop()
                self._forget(learner)

    def _stage(self, learner: _Learner) -> None:
        """Queue this step for a learner: gradients, and as much more as may be sent."""
        now_s = time.monotonic()
        backlog = learner.backlog
        payload = [gradient for _, gradient in learner.gradients]
        room = self._usual_rate * (now_s - learner.last_s) - backlog
        room -= sum(part.nbytes for part in payload)
        learner.last_s = now_s
        new: list[NewParameter] = []
        while learner.todo and (room > 0 or (not new and not backlog)):
            handed, parts = self._hand_over(learner.todo.popleft())
            learner.held.append(handed.index)
            new.append(handed)
            payload += parts
            room -= sum(part.nbytes for part in parts)
        header = StepHeader(
            version=self._version() + 1,
            groups=learner.groups,
            gradients=tuple(index for index, _ in learner.gradients),
            new=tuple(new),
            num_left=len(learner.todo),
            backlog=backlog,
        )
        learner.put(msgspec.msgpack.encode(header), payload)
        learner.gradients = []

    def _hand_over(self, index: int) -> tuple[NewParameter, list[Tensor]]:
        name, parameter = self._parameters[index]
        tensors: dict[str, Tensor] = {f"model/{name}": parameter}
        for key, tensor in self._moments.tensors_of(parameter).items():
            tensors[f"{PREFIX}{name}/{key}"] = tensor
        handed = NewParameter(
            index,
            tuple(model_part.entry_of(*item) for item in tensors.items()),
            values.encode(self._moments.values_of(parameter)),
        )
        return handed, [_bytes_of(tensor) for tensor in tensors.values()]

    # -- the control thread ------------------------------------------------------------

    async def serve(self, connection: PeerConnection) -> None:
        """Serve one learner until it closes the connection."""
        name = connection.hello.name or connection.node
        try:
            learner = await self._welcome(connection, name)
            if learner is None:
                return
            _log.info("%s follows the run", name)
            end = asyncio.create_task(_wait_for_end(connection, learner))
            try:
                await self._send_all(connection.writer, learner)
            finally:
                self._forget(learner)
                end.cancel()
        except (RingleaderError, OSError) as exc:
            _log.info("%s does not follow the run any more: %s", name, exc)
        finally:
            connection.close()

    async def _welcome(self, connection: PeerConnection, name: str) -> _Learner | None:
        reader, writer = connection.reader, connection.writer
        hello = await read_message(reader, name, LearnerHello, HELLO_BYTES)
        refusal = self._refusal(hello)
        writer.write(framing.pack(SourceReply(refusal)))
        await writer.drain()
        if refusal:
            return None
        sizes = [p.nbytes for _, p in self._parameters]
        chosen = share_out(sizes, hello.count)
        mine = [index for index, source in enumerate(chosen) if source == hello.index]
        learner = _Learner(name, mine)
        self._learners.append(learner)
        return learner

    def _refusal(self, hello: LearnerHello) -> str:
        if self._is_closed:
            return "it leaves the run"
        if hello.layout != self._layout:
            return "its model or optimizer differs"
        if hello.fingerprint != self._fingerprint:
            return "it does not compute the same bits"
        if not is_tensorwise(self._optimizer):
            return "the optimizer does not work parameter by parameter"
        if len(self._learners) >= MAX_LEARNERS:
            return f"{MAX_LEARNERS} machines are being served already"
        return ""

    async def _send_all(self, writer: asyncio.StreamWriter, learner: _Learner) -> None:
        while (item := await learner.queue.get()) is not None:
            header, payload = item
            writer.write(framing.frame(header))
            for part in payload:
                view = memoryview(part.numpy().data)
                for begin in range(0, len(view), _CHUNK_BYTES):
                    chunk = view[begin : begin + _CHUNK_BYTES]
                    writer.write(chunk)
                    await writer.drain()
                    learner.sent(len(chunk))
                    await self._pace.sent(len(chunk))

    def _forget(self, learner: _Learner) -> None:
        with contextlib.suppress(ValueError):
            self._learners.remove(learner)


def is_tensorwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of some parameters alone is the same as of all together."""
    return is_plain(optimizer) and not isinstance(optimizer, torch.optim.LBFGS)


async def _wait_for_end(connection: PeerConnection, learner: _Learner) -> None:
    """Drop the learner when it closes the connection; it sends nothing else."""
    with contextlib.suppress(OSError):
        await connection.reader.read(1)
    learner.queue.put_nowait(None)


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return a copy of the tensor's bytes in host memory."""
    copied = tensor.detach().to("cpu", copy=True).contiguous()
    return copied.reshape(-1).view(torch.uint8)
