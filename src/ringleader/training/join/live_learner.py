"""LiveLearner: a process that follows a run, before it becomes a member.

It takes the parameters over from several sources, each at its own version, and applies
the run's gradients to those that it has. Nothing here has to be trusted: when it is
admitted, digests show which tensors are not those of the run, and these are copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ringleader.checkpoint import dtypes, values
from ringleader.deadline import Deadline
from ringleader.errors import PeerLost, PeerRefused, ProtocolError, RingleaderError
from ringleader.node.peering.peer_connection import PeerConnection
from ringleader.node.protocol import framing
from ringleader.training.join.step_messages import (
    MAX_HEADER_BYTES,
    LearnerHello,
    NewParameter,
    SourceReply,
    StepHeader,
    read_into,
    read_message,
)
from ringleader.training.kill_points import reach
from ringleader.training.state import model_part
from ringleader.training.state.manifest import Entry
from ringleader.training.state.optimizer_part import PREFIX, OptimizerPart
from ringleader.training.state.replicated_state import ReplicatedState

_log = logging.getLogger(__name__)

_MAX_TENSORS = 64
_MAX_RATIO = 64
"""Tensors of an optimizer for one parameter, and their size relative to it."""

Dial = Callable[[], Awaitable[Sequence[PeerConnection]]]


MAX_TURNS = 5
"""How many sources a part of the state may be taken from, one after the other."""


@dataclass(slots=True, eq=False)
class _Stream:
    """One part of the state, and what its source has sent of it."""

    index: int
    count: int
    who: str = ""
    held: set[int] = field(default_factory=set)
    version: int = -1
    is_whole: bool = False
    """Whether it has handed over everything."""
    is_level: bool = False
    """Whether it had done so before its last message, and sends faster than the run
    steps: what is still to come then is a step at most."""

    def begin(self, who: str) -> None:
        """Take it from a source from the beginning: it has missed steps since."""
        self.who, self.held, self.version = who, set(), -1
        self.is_whole = self.is_level = False


class LiveLearner:
    """Follows a run in a thread of its own, which changes model and optimizer."""

    def __init__(
        self,
        state: ReplicatedState,
        dial: Dial,
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        self._state = state
        self._dial = dial
        self._tell = tell
        self._parameters = list(state.model.named_parameters())
        self._moments = OptimizerPart(state.model, state.optimizer)
        self._streams: list[_Stream] = []
        self._news = threading.Condition()
        self._limit_s = 0.0
        self._deadline = Deadline.after(0.0)
        """When a newcomer that gets nothing more of the state joins all the same."""
        self._is_over = False
        self._stop: Callable[[], object] | None = None
        self._thread = threading.Thread(
            target=self._main, name="ringleader-learner", daemon=True
        )

    def start(self) -> None:
        """Dial the sources and begin to follow them."""
        self._thread.start()

    def wait_level(self, limit_s: float) -> bool:
        """Return True when the state here follows the run; False if it cannot.

        It cannot if nothing more of the state comes for ``limit_s``.
        """
        with self._news:
            self._limit_s = limit_s
            self._deadline = Deadline.after(limit_s)
            while not self._is_over:
                if self._streams and all(s.is_level for s in self._streams):
                    return True
                if self._deadline.is_over():
                    return False
                self._news.wait(min(0.5, self._deadline.left_s()))
        return False

    def _say(self, text: str) -> None:
        """Tell the user what has become of a source, and how long this may take."""
        left_s = self._deadline.left_s()
        end = f" (if nothing more comes, it joins in {left_s:.0f} s all the same)"
        self._tell(f"joining: {text}{end if left_s > 0 else ''}")

    def finish(self, version: int, deadline: Deadline) -> bool:
        """Stop following; True if the state should be that of ``version``.

        Waits for the last steps, unless a part of the state is still to come.
        """
        found = False
        with self._news:
            while not (self._is_over or deadline.is_over()):
                if not self._streams or not all(s.is_whole for s in self._streams):
                    break
                found = all(s.version >= version for s in self._streams)
                if found:
                    break
                self._news.wait(min(0.5, deadline.left_s()))
        with self._news:
            self._is_over = True
            stop = self._stop
        if stop is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                stop()
        self._thread.join()
        return found

    # -- its thread --------------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._follow_all())
        except RingleaderError as exc:
            self._say(f"{exc}; the state is copied while the others wait")
        except asyncio.CancelledError:
            pass
        finally:
            with self._news:
                self._is_over = True
                self._news.notify_all()

    async def _follow_all(self) -> None:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None
        with self._news:
            if self._is_over:
                return
            self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        sources = await self._dial()
        streams = [_Stream(index, len(sources)) for index in range(len(sources))]
        with self._news:
            self._streams = list(streams)
        await asyncio.gather(*map(self._follow_part, streams, sources))

    async def _follow_part(self, stream: _Stream, connection: PeerConnection) -> None:
        """Follow a source; when it is lost another one, as long as there is one.

        A part that nobody serves is copied later.
        """
        try:
            for _ in range(MAX_TURNS):
                stream.begin(connection.hello.name or connection.node)
                try:
                    await self._follow(stream, connection)
                except PeerLost as exc:
                    self._say(f"{exc}; asking another machine for its part")
                finally:
                    connection.close()
                connection = await self._another(stream.index)
        except RingleaderError as exc:
            self._say(f"{exc}; that part is copied while the others wait")
        finally:
            with self._news:
                self._streams.remove(stream)
                self._news.notify_all()

    async def _another(self, index: int) -> PeerConnection:
        """Return a connection to a member that is alive."""
        sources = list(await self._dial())
        chosen = sources.pop(index % len(sources))
        for each in sources:
            each.close()
        return chosen

    async def _follow(self, stream: _Stream, connection: PeerConnection) -> None:
        """Follow one source until it is lost; raises why."""
        state, reader, who = self._state, connection.reader, stream.who
        hello = LearnerHello(
            state.layout().digest(), state.fingerprint(), stream.index, stream.count
        )
        try:
            framing.write(connection.writer, framing.pack(hello))
        except OSError as exc:
            raise PeerLost(who, "closed the connection") from exc
        reply = await read_message(reader, who, SourceReply, 4096)
        if reply.refusal:
            raise PeerRefused(who, reply.refusal[:500])
        while True:
            await self._follow_step(stream, reader)

    async def _follow_step(self, stream: _Stream, reader: asyncio.StreamReader) -> None:
        who = stream.who
        step = await read_message(reader, who, StepHeader, MAX_HEADER_BYTES)
        if not stream.held.issuperset(step.gradients):
            raise ProtocolError(who, "sent a gradient of a parameter that is not here")
        gradients: dict[int, Tensor] = {}
        for index in step.gradients:
            gradient = torch.empty_like(
                self._parameters[index][1],
                device="cpu",
                memory_format=torch.contiguous_format,
            )
            await _read_tensor(reader, who, gradient)
            gradients[index] = gradient
        new: list[tuple[NewParameter, list[Tensor]]] = []
        for each in step.new:
            tensors = self._rooms(stream, each)
            for tensor in tensors:
                await _read_tensor(reader, who, tensor)
            new.append((each, tensors))
        with self._news:
            if not self._is_over:
                self._apply(step, gradients, new, who)
                stream.held.update(each.index for each in step.new)
                stream.version = step.version
                stream.is_level = stream.is_whole and not step.backlog
                stream.is_whole = not step.num_left
                if step.new:
                    self._deadline = Deadline.after(self._limit_s)
            self._news.notify_all()
        reach("join:log" if gradients else "join:hand")

    def _rooms(self, stream: _Stream, new: NewParameter) -> list[Tensor]:
        """Return tensors for a parameter that is handed over, after checks."""
        if not 0 <= new.index < len(self._parameters) or new.index in stream.held:
            raise ProtocolError(stream.who, f"sent parameter {new.index}")
        name, parameter = self._parameters[new.index]
        first, *rest = new.tensors or (Entry("", "U8", ()),)
        limit = _MAX_RATIO * parameter.nbytes + (1 << 20)
        if (
            first != model_part.entry_of(f"model/{name}", parameter)
            or len(rest) > _MAX_TENSORS
            or not all(e.name.startswith(f"{PREFIX}{name}/") for e in rest)
            or not all(min(e.shape, default=0) >= 0 for e in rest)
            or sum(_checked_bytes(e, stream.who) for e in rest) > limit
        ):
            text = f"sent tensors that do not belong to parameter {name}"
            raise ProtocolError(stream.who, text)
        return [
            torch.empty(entry.shape, dtype=dtypes.dtype_of(entry.dtype))
            for entry in new.tensors
        ]

    def _apply(
        self,
        step: StepHeader,
        gradients: Mapping[int, Tensor],
        new: Sequence[tuple[NewParameter, list[Tensor]]],
        who: str,
    ) -> None:
        """Take one step of the run with the parameters of one source."""
        parameters = [parameter for _, parameter in self._parameters]
        kept = [parameter.grad for parameter in parameters]
        try:
            self._moments.set_hyperparameters(values.decode(step.groups))
            for index, parameter in enumerate(parameters):
                gradient = gradients.get(index)
                parameter.grad = None
                if gradient is not None:
                    parameter.grad = gradient.to(parameter.device)
            if gradients:
                self._state.optimizer.step()
            for each, (value, *moments) in new:
                parameter = parameters[each.index]
                parameter.detach().copy_(value)
                keys = [e.name.rpartition("/")[2] for e in each.tensors[1:]]
                plain = values.decode(each.values)
                pairs = dict(zip(keys, moments, strict=True))
                self._moments.set_state(parameter, pairs, plain)
        except (ValueError, TypeError, AttributeError) as exc:
            raise ProtocolError(who, f"sent values that do not fit: {exc}") from exc
        finally:
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient


def _checked_bytes(entry: Entry, who: str) -> int:
    try:
        dtypes.dtype_of(entry.dtype)
    except ValueError as exc:
        raise ProtocolError(who, str(exc)) from None
    return entry.num_bytes


async def _read_tensor(reader: asyncio.StreamReader, who: str, tensor: Tensor) -> None:
    room = tensor.reshape(-1).view(torch.uint8).numpy()
    await read_into(reader, who, memoryview(room.data))
