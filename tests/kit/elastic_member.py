"""One member of an elastic run, in a forked process that reports every step.

Reports and commands are lines of JSON on one socket. Commands: ``arm`` (a kill point
for the next time that it is reached, or with ``@N`` for the N-th), ``stop_at`` (stop
this process, SIGSTOP, at a point), ``hold_at`` (sleep there), ``wait_at`` (wait at a
point for the next view, then arm another), ``ledger`` and ``usage`` (report it),
``pause_s`` (time of a quantum) and ``saves`` (write checkpoints from now on).
"""

from __future__ import annotations

import base64
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.nn.functional import cross_entropy

from ringleader.deadline import Deadline
from ringleader.node.launch.end_with_parent import kill_on_death_of_parent
from ringleader.settings.kill_point import KillPoint
from ringleader.training import following, kill_points, next_view
from ringleader.training.bucket_plan import plan_buckets
from ringleader.training.elastic import elastic
from ringleader.training.join.live_learner import LiveLearner
from ringleader.training.state import digests, pieces
from tests.kit import endless_task as task
from tests.kit.warm_python import enter

WAIT_S = 60.0
"""How long a member that is to be late waits for the next view."""
HOLD_S = 2.0
"""How long the user's thread is held in a copy, until the parent has cut a link."""
SMALL_BUCKET_BYTES = 600
"""Limit of a bucket, so that the small model has two."""
SMALL_PIECE_BYTES = 256
"""A copy of its state has more than twenty pieces."""


def become_member(
    sock: socket.socket, environment: dict[str, str], namespace: str, parent: int
) -> NoReturn:
    """Train until killed or until the parent closes ``sock``; never returns."""
    code = 1
    try:
        kill_on_death_of_parent(parent)
        if namespace:
            enter(namespace)
        os.environ.update(environment)
        torch.set_num_threads(1)
        limits = {"first": SMALL_BUCKET_BYTES, "limit": SMALL_BUCKET_BYTES}
        plan_buckets.__kwdefaults__ = limits
        pieces.cut.__defaults__ = (SMALL_PIECE_BYTES,)
        digests.PIECE_BYTES = SMALL_PIECE_BYTES  # type: ignore[attr-defined]
        _Member(sock).train()
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must not return to the parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class _Member:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unread = b""
        self._pause_s = 0.0
        self._saves = False

    def train(self) -> None:
        arm = os.environ.get("KILL_AT", "")
        if arm:
            kill_points.arm(_point(arm))
        dtype = os.environ.get("TASK_DTYPE", "float64")
        model, optimizer = task.make_model(dtype)
        options: dict[str, Any] = json.loads(os.environ.get("ELASTIC_OPTIONS", "{}"))
        following.LIVE_BYTES = int(os.environ.get("LIVE_BYTES", following.LIVE_BYTES))
        next_view.LOST_S = float(os.environ.get("LOST_S", next_view.LOST_S))
        if os.environ.get("DAMAGE"):
            self._damage_what_comes(model)
        run = elastic(
            model,
            optimizer,
            task.Points(dtype),
            global_batch=task.GLOBAL_BATCH,
            micro_batch=task.MICRO_BATCH,
            seed=task.SEED,
            epochs=None,
            **options,
        )

        def report(*_: object) -> None:
            weights = base64.b64encode(task.flat(model).tobytes()).decode()
            self._say(
                event="step",
                at_s=time.monotonic(),
                version=run.version + 1,
                weights=weights,
                members=list(run.members),
            )

        # Not where step() returns True: a member that is slow may have no quanta.
        optimizer.register_step_post_hook(report)
        for x, y in run:
            time.sleep(self._pause_s)
            run.backward(cross_entropy(model(x), y))
            if run.step() and self._saves:
                run.checkpoint()
            self._obey(run)

    def _damage_what_comes(self, model: torch.nn.Module) -> None:
        """Change one bit of what this member has got by following the run."""
        finish, say = LiveLearner.finish, self._say

        def damaged(self: LiveLearner, version: int, deadline: Deadline) -> bool:
            is_right = finish(self, version, deadline)
            first = next(model.parameters()).detach()
            first.view(torch.uint8).view(-1)[3] ^= 1
            say(event="damaged", was_right=is_right)
            return is_right

        LiveLearner.finish = damaged  # type: ignore[method-assign]

    def _say(self, **fields: object) -> None:
        self._sock.sendall(json.dumps(fields).encode() + b"\n")

    def _obey(self, run: Any) -> None:  # noqa: ANN401
        while select.select([self._sock], [], [], 0)[0]:
            found = self._sock.recv(4096)
            if not found:
                os._exit(0)  # the parent is done
            *lines, self._unread = (self._unread + found).split(b"\n")
            for line in lines:
                self._perform(json.loads(line), run)

    def _perform(self, command: dict[str, Any], run: Any) -> None:  # noqa: ANN401
        match command:
            case {"arm": str(name)}:
                kill_points.arm(_point(name))
                self._say(event="armed", name=name)
            case {"stop_at": str(name)}:
                point = _point(name)
                assert point is not None
                kill_points.arm(KillPoint(point.name, 0))
                stop = _Stop(point.times, lambda: self._say(event="stops"))
                kill_points._armed.lock = stop  # type: ignore[assignment]
                self._say(event="armed", name=name)
            case {"hold_at": str(name)}:
                point = _point(name)
                assert point is not None
                kill_points.arm(KillPoint(point.name, 0))
                hold = _Stop(point.times, lambda: self._say(event="holds"), HOLD_S)
                kill_points._armed.lock = hold  # type: ignore[assignment]
                self._say(event="armed", name=name)
            case {"wait_at": str(name), "then": str(then)}:
                _wait_at(name, then, lambda: self._say(event="waits"))
            case {"pause_s": float(pause_s)}:
                self._pause_s = pause_s
            case {"saves": bool(saves)}:
                self._saves = saves
            case {"ledger": True}:
                entries = [list(entry) for entry in run.ledger().entries()]
                counts = run.ledger().samples_by_node()
                self._say(
                    event="ledger", version=run.version, entries=entries, counts=counts
                )
            case {"usage": True}:
                self._say(event="usage", **_usage())


def _point(text: str) -> KillPoint | None:
    """Return the point in NAME or NAME@N; None if the text is empty."""
    name, _, times = text.partition("@")
    return KillPoint(name, int(times or 1)) if name else None


class _Stop:
    """Takes the place of a kill point's lock: stops the process there, or sleeps."""

    def __init__(
        self, times: int, on_stop: Callable[[], None], hold_s: float = 0.0
    ) -> None:
        self._left = times
        self._on_stop = on_stop
        self._hold_s = hold_s

    def __enter__(self) -> None:
        self._left -= 1
        if not self._left:
            self._on_stop()
            time.sleep(self._hold_s)
            if not self._hold_s:
                os.kill(os.getpid(), signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        pass


class _Wait:
    """Takes the place of a kill point's lock: waits there until a view was installed.

    Then it arms another point.
    """

    def __init__(self, then: str, on_wait: Callable[[], None]) -> None:
        self._then = then
        self._on_wait = on_wait
        self._installed = threading.Event()

    def __enter__(self) -> None:
        _notify_at("install", self._installed)
        self._on_wait()
        self._installed.wait(WAIT_S)
        kill_points.arm(KillPoint(self._then, 1) if self._then else None)

    def __exit__(self, *_: object) -> None:
        pass


class _Notify:
    """Takes the place of a kill point's lock: sets an event there."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def __enter__(self) -> None:
        self._event.set()

    def __exit__(self, *_: object) -> None:
        pass


def _wait_at(name: str, then: str, on_wait: Callable[[], None]) -> None:
    """Where the point ``name`` is reached next, wait for a view instead of dying."""
    kill_points.arm(KillPoint(name, 0))
    kill_points._armed.lock = _Wait(then, on_wait)  # type: ignore[assignment]


def _notify_at(name: str, event: threading.Event) -> None:
    kill_points.arm(KillPoint(name, 0))
    kill_points._armed.lock = _Notify(event)  # type: ignore[assignment]


def _usage() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss": pages * resource.getpagesize(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }
