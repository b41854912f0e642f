"""``ringleader.trace``: records where the time of training steps goes, on all ranks."""

from __future__ import annotations

import itertools
import logging
import os
import platform
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ringleader import settings
from ringleader.errors import ConfigError
from ringleader.groups.handle import GroupHandle
from ringleader.groups.observation import MakeObserver, observe_groups
from ringleader.settings.tracing import check_path
from ringleader.tracing.analysis.events import Recording
from ringleader.tracing.analysis.summary import summarize
from ringleader.tracing.analysis.table import format_table
from ringleader.tracing.courier import GATHER_S, Courier, Origin
from ringleader.tracing.group_recorder import GroupRecorder
from ringleader.tracing.program_recorder import ProgramRecorder
from ringleader.tracing.recorder import Recorder
from ringleader.tracing.trace_file import next_free, write_trace

_log = logging.getLogger(__name__)

EVENTS = 50_000
"""Events kept of each rank; some 10 MB on rank 0."""
_numbers = itertools.count(1)


@dataclass(slots=True)
class _Current:
    """The trace of this process, if it records one."""

    trace: Trace | None = None


_current = _Current()


def trace(path: str | os.PathLike[str] | None = None, *, events: int = EVENTS) -> Trace:
    """Record where the time of training steps goes, on all ranks::

        with ringleader.trace("out.json"):
            for batch in loader:
                train(batch)

    All ranks must enter and leave it. A step ends with ``step()`` of the first
    optimizer, or where the program calls ``step()`` on the trace. At the end rank 0
    prints a table of the last steps with the one sentence that matters, and writes the
    events of all ranks, on one clock, to ``path``, for ui.perfetto.dev. Each rank keeps
    its last ``events`` events.
    """
    return Trace(path, events=events)


class Trace:
    """A trace that is being recorded; see ``trace``."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        events: int = EVENTS,
        since_s: float | None = None,
    ) -> None:
        if events < 1:
            raise ConfigError(f"trace: events={events}; keep at least one")
        self._path = None if path is None else check_path(path)
        self._since_s = since_s
        self._events = events
        self._outer: Trace | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._stop_groups: Callable[[], None] = lambda: None
        self._program: ProgramRecorder | None = None
        self._courier: Courier | None = None
        self.report = ""
        """The table and its sentence, on rank 0 after the end."""
        self.recording: Recording | None = None
        """The events of all ranks on one clock, on rank 0 after the end."""

    def __enter__(self) -> Self:
        """Begin to record."""
        self.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Write what was recorded, also if the program failed."""
        self.finish()

    def start(self) -> None:
        """Begin to record; a trace inside another one is a part of it."""
        if self._courier is not None or self._outer is not None:
            raise ConfigError("trace: it was started before; make a new one")
        if _current.trace is not None:
            self._outer = _current.trace
            where = f", so {self._path} is not written" if self._path else ""
            _log.warning("trace: this process is being traced already%s", where)
            return
        _current.trace = self
        recorder = Recorder(self._events)
        origin = Origin(
            machine=settings.node_name() or platform.node(),
            link_kind=settings.link_kind(),
        )
        name = f"{settings.round_id()}/{next(_numbers)}"
        self._courier = Courier(recorder, origin, name, self._events)
        self._program = ProgramRecorder(recorder)
        self._stop_groups = observe_groups(self._observer(recorder, self._courier))
        self._program.start()
        self._courier.start()

    @staticmethod
    def _observer(recorder: Recorder, courier: Courier) -> MakeObserver:
        def make(handle: GroupHandle) -> GroupRecorder:
            courier.met(handle)
            return GroupRecorder(handle, recorder)

        return make

    def step(self) -> None:
        """End a step here; from now on optimizers end none."""
        recorder = self._outer or self
        if recorder._program is not None:
            recorder._program.step()

    def finish(self, gather_s: float = GATHER_S) -> None:
        """End the recording; rank 0 writes it. Idempotent.

        Rank 0 waits for the others for ``gather_s`` at most. A later call returns when
        an earlier one does, and may shorten that time.
        """
        courier = self._courier
        if courier is None or os.getpid() != self._process:
            return
        courier.hurry(gather_s)
        with self._lock:
            program, self._program = self._program, None
            if program is None:
                return
            program.stop()
            self._stop_groups()
            if _current.trace is self:
                _current.trace = None
            self.recording = courier.finish()
            if self.recording is not None:
                self._write(self.recording, courier)

    def _write(self, recording: Recording, courier: Courier) -> None:
        self.report = format_table(summarize(recording))
        lines = [self.report]
        path = self._path
        if courier.failure and courier.rank != 0:
            lines = [f"rank {courier.rank}: {courier.failure}; its trace is apart"]
        elif courier.failure:
            lines.append(f"rank 0 could not collect all of it: {courier.failure}")
        if path is not None:
            if courier.rank != 0:
                path = path.with_name(f"{path.stem}.rank{courier.rank}{path.suffix}")
            if self._since_s is not None:
                path = next_free(path, self._since_s)
            try:
                write_trace(recording, path)
                lines.append(f"trace: {path} (open it in https://ui.perfetto.dev)")
            except OSError as exc:
                lines.append(f"trace: cannot write {path}: {exc}")
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
