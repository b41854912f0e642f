"""LiveSource: serves the state of a member to learners while it trains.

A coroutine on the control thread hands over parameter after parameter, each as it is
between two steps of the optimizer, whenever the link is free. Hooks of the optimizer
keep the gradients of what a learner has already. When a learner does not keep up, steps
wait until it has got its share of the link, half for gradients and half for state: that
is about the speed of the run when it is a member, and nobody stands still while it
copies the whole state. One whose link takes nothing, or next to nothing, is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from ringleader.checkpoint import values
from ringleader.errors import RingleaderError
from ringleader.ids import Incarnation
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol import framing
from ringleader.training.join.learner import Learner, Step
from ringleader.training.join.step_messages import (
    ALIVE_S,
    LearnerHello,
    NewParameter,
    SourceReply,
    StepHeader,
    read_message,
)
from ringleader.training.join.upload_pace import UploadPace
from ringleader.training.kill_points import reach
from ringleader.training.state import model_part
from ringleader.training.state.optimizer_part import PREFIX, OptimizerPart, is_plain
from ringleader.training.state.pieces import share_out
from ringleader.training.state.replicated_state import ReplicatedState

_log = logging.getLogger(__name__)

STALLED_S: Final = 5.0
"""Steps do not wait longer for a learner whose link takes no byte."""

SLOWEST: Final = 2.5e5
"""Bytes per second of a link below which no step waits for a learner."""

MAX_LEARNERS: Final = 4
HELLO_BYTES: Final = 4096
_CHUNK_BYTES: Final = 1 << 18
_STEPPING_S: Final = 0.002
"""How long to wait before the optimizer is looked at again, while it steps."""
_POLL_S: Final = 0.01


class LiveSource:
    """Serves learners from the state of this member."""

    def __init__(
        self, state: ReplicatedState, version: Callable[[], int], pace: UploadPace
    ) -> None:
        self._optimizer = state.optimizer
        self._parameters = list(state.model.named_parameters())
        self._moments = OptimizerPart(state.model, state.optimizer)
        self._layout = state.layout().digest()
        self._fingerprint = state.fingerprint()
        self._version = version
        self._applied = 0
        """The last version whose step of the optimizer was seen to end."""
        self._pace = pace
        self._learners: list[Learner] = []
        self._too_slow: set[Incarnation] = set()
        """Processes that were dropped: they join by copying."""
        self._hooks: list[Any] = []
        self._is_closed = False
        self._lock = threading.Lock()
        """Held while a parameter is read, and while a step of the optimizer begins."""
        self._is_stepping = False

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

    @property
    def has_learners(self) -> bool:
        """Whether a learner is being served."""
        return bool(self._learners)

    # -- the user's thread: hooks of the optimizer -------------------------------------

    def _before_step(self) -> None:
        with self._lock:
            self._is_stepping = True
            for learner in list(self._learners):
                learner.gradients = {
                    index: _bytes_of(gradient)
                    for index in learner.held
                    if (gradient := self._parameters[index][1].grad) is not None
                }
                learner.groups = self._groups()

    def _after_step(self) -> None:
        with self._lock:
            self._is_stepping = False
            self._applied = self._version() + 1
        for learner in list(self._learners):
            if not learner.groups:
                continue  # it came during the step
            reach("join:log")
            learner.put(Step(self._applied, learner.groups, learner.gradients))
            learner.gradients, learner.groups = {}, b""

    def wait_for_learners(self, must_go_on: Callable[[], bool]) -> None:
        """Wait until every slow learner has its share, or until ``must_go_on``.

        Call it between two steps: nothing is computed or reduced meanwhile.
        """
        for learner in list(self._learners):
            began_s = time.monotonic()
            limit_s = STALLED_S + learner.owed / SLOWEST
            while learner.owed and learner in self._learners and not must_go_on():
                now_s = time.monotonic()
                if now_s - began_s > limit_s:
                    text = "ringleader: %s is too slow to follow the run: it copies"
                    _log.warning(text, learner.name)
                    self._too_slow.add(learner.life)
                    self._drop(learner)
                elif now_s - max(began_s, learner.moved_s) > STALLED_S:
                    self._drop(learner)
                time.sleep(_POLL_S)

    def _drop(self, learner: Learner) -> None:
        learner.cut()
        self._forget(learner)

    def skipped(self, version: int) -> None:
        """Tell learners of a version that needed no step of the optimizer, if it did
        not: gradients were not finite, and the loss scaler left it out."""
        with self._lock:
            if self._applied >= version:
                return
            self._applied = version
        for learner in list(self._learners):
            learner.put(Step(version, self._groups()))

    def _groups(self) -> bytes:
        return values.encode(self._moments.hyperparameters())

    # -- the control thread ------------------------------------------------------------

    async def serve(self, connection: PeerConnection) -> None:
        """Serve one learner until it closes the connection."""
        name = connection.hello.name or connection.node
        try:
            learner = await self._welcome(connection, name)
            if learner is None:
                return
            _log.info("%s follows the run", name)
            _keep_send_buffer_short(connection.writer)
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

    async def _welcome(self, connection: PeerConnection, name: str) -> Learner | None:
        reader, writer = connection.reader, connection.writer
        hello = await read_message(reader, name, LearnerHello, HELLO_BYTES)
        refusal = self._refusal(hello, connection.hello.incarnation)
        framing.write(writer, framing.pack(SourceReply(refusal)))
        await writer.drain()
        if refusal:
            return None
        sizes = [p.nbytes for _, p in self._parameters]
        chosen = share_out(sizes, hello.count)
        mine = [index for index, source in enumerate(chosen) if source == hello.index]
        learner = Learner(name, connection, mine)
        self._learners.append(learner)
        return learner

    async def _send_all(self, writer: asyncio.StreamWriter, learner: Learner) -> None:
        """Send steps as they come, and parameters between them."""
        header: StepHeader | None = None
        while True:
            if learner.todo and learner.queue.empty():
                handed = await self._hand_over_next(writer, learner)
                header = handed or header
                if handed is None:
                    await asyncio.sleep(_STEPPING_S)
                continue
            try:
                async with asyncio.timeout(ALIVE_S):
                    step = await learner.queue.get()
            except TimeoutError:
                if header is not None:  # nothing new: a sign of life
                    empty = msgspec.structs.replace(
                        header, gradients=(), new=(), backlog=learner.backlog
                    )
                    await self._send(writer, learner, empty, ())
                continue
            if step is None:
                return
            header = StepHeader(
                version=step.version,
                groups=step.groups,
                gradients=tuple(step.gradients),
                new=(),
                num_left=len(learner.todo),
                backlog=learner.backlog - step.num_bytes,
            )
            await self._send(writer, learner, header, list(step.gradients.values()))
            learner.sent(step)

    async def _hand_over_next(
        self, writer: asyncio.StreamWriter, learner: Learner
    ) -> StepHeader | None:
        """Send one parameter as it is now; None while the optimizer steps."""
        handed = await asyncio.to_thread(self._read_next, learner)
        if handed is None:
            return None
        header, payload = handed
        reach("join:hand")
        await self._send(writer, learner, header, payload)
        return header

    def _read_next(self, learner: Learner) -> tuple[StepHeader, list[Tensor]] | None:
        with self._lock:
            if self._is_stepping:
                return None
            index = learner.todo.popleft()
            name, parameter = self._parameters[index]
            tensors: dict[str, Tensor] = {f"model/{name}": parameter}
            for key, tensor in self._moments.tensors_of(parameter).items():
                tensors[f"{PREFIX}{name}/{key}"] = tensor
            new = NewParameter(
                index,
                tuple(model_part.entry_of(*item) for item in tensors.items()),
                values.encode(self._moments.values_of(parameter)),
            )
            payload = [_bytes_of(tensor) for tensor in tensors.values()]
            learner.held.append(index)  # the next step's gradient follows
            header = StepHeader(
                version=max(self._applied, self._version()),
                groups=self._groups(),
                gradients=(),
                new=(new,),
                num_left=len(learner.todo),
                backlog=learner.backlog,
            )
            return header, payload

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        learner: Learner,
        header: StepHeader,
        payload: Sequence[Tensor],
    ) -> None:
        framing.write(writer, framing.pack(header))
        for part in payload:
            view = memoryview(part.numpy().data)
            for begin in range(0, len(view), _CHUNK_BYTES):
                chunk = view[begin : begin + _CHUNK_BYTES]
                framing.write(writer, chunk)
                await writer.drain()
                learner.moved(len(chunk))
                await self._pace.sent(len(chunk))

    def _refusal(self, hello: LearnerHello, life: Incarnation) -> str:
        if self._is_closed:
            return "it leaves the run"
        if life in self._too_slow:
            return "the link is too slow to follow the run"
        if hello.layout != self._layout:
            return "its model or optimizer differs"
        if hello.fingerprint != self._fingerprint:
            return "it does not compute the same bits"
        if not is_tensorwise(self._optimizer):
            return "the optimizer does not work parameter by parameter"
        if len(self._learners) >= MAX_LEARNERS:
            return f"{MAX_LEARNERS} machines are being served already"
        return ""

    def _forget(self, learner: Learner) -> None:
        with contextlib.suppress(ValueError):
            self._learners.remove(learner)


def is_tensorwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of some parameters alone is the same as of all together."""
    return is_plain(optimizer) and not isinstance(optimizer, torch.optim.LBFGS)


async def _wait_for_end(connection: PeerConnection, learner: Learner) -> None:
    """Drop the learner when it closes the connection; it sends nothing else."""
    with contextlib.suppress(OSError):
        await connection.reader.read(1)
    learner.cut()


def _keep_send_buffer_short(writer: asyncio.StreamWriter) -> None:
    """Keep bytes here until they can leave, so that a reduction overtakes them."""
    sock = writer.get_extra_info("socket")
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None and sock is not None:
        with contextlib.suppress(OSError):  # not TCP, or not known to the system
            sock.setsockopt(socket.IPPROTO_TCP, option, _CHUNK_BYTES)


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return a copy of the tensor's bytes in host memory."""
    copied = tensor.detach().to("cpu", copy=True).contiguous()
    return copied.reshape(-1).view(torch.uint8)
