"""Opens a run: builds the application from a task, a plan and a directory."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringleader.errors import ConfigError
from ringleader.identity import server_key
from ringleader.identity.secret_value import Secret
from ringleader.identity.server_certificate import ServerCertificate
from ringleader.identity.server_key import ServerKey
from ringleader.identity.storage.home import LOCK, FileLock, Home
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.messages import MAX_BATCH_SIZE, MAX_INTEGER
from ringleader.paramserver.server.admission import Admission
from ringleader.paramserver.server.global_weights import (
    MAX_MOVE,
    GlobalWeights,
    warm_up,
)
from ringleader.paramserver.server.http.app import App, RunSettings
from ringleader.paramserver.server.outer_optimizer import outer_optimizer
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.round_scheduler import RoundScheduler
from ringleader.paramserver.server.scheduler import Scheduler
from ringleader.paramserver.server.storage.run_store import RunStore
from ringleader.paramserver.server.training import Training
from ringleader.paramserver.tasks.task import Task

ContextSource = ssl.SSLContext | Callable[[], ssl.SSLContext]
"""A TLS context, or what returns the one for the next connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of a server besides the plan."""

    out: Path
    pin: Secret[str] | None = None
    is_open: bool = False
    batch_size: int | None = None
    """Samples of one step of one worker; None: the batch size of the task."""
    seed: int = 0
    codec: str = ""
    """Codec of updates, for workers that choose none themselves; empty: int8 in rounds
    mode, none in others."""
    weights_codec: str = "none"
    checkpoint_every: int = 10
    max_move: float = MAX_MOVE
    """Largest move of the weights by one update, in norms of the weights; 0: any."""
    outer: str = ""
    """How differences are applied: a name that ``outer_optimizer`` knows."""

    def __post_init__(self) -> None:
        bodies.wire_name(self.codec or "none")
        if self.weights_codec not in bodies.WEIGHTS_CODECS:
            known = ", ".join(bodies.WEIGHTS_CODECS)
            raise ConfigError(f"weights_codec: {self.weights_codec} is none of {known}")
        if self.checkpoint_every < 1:
            raise ConfigError("checkpoint_every: must be 1 or more rounds")
        if self.batch_size is not None and not 1 <= self.batch_size <= MAX_BATCH_SIZE:
            text = f"{self.batch_size} is not between 1 and {MAX_BATCH_SIZE}"
            raise ConfigError(f"batch_size: {text}")
        if not 0 <= self.max_move < math.inf:
            raise ConfigError("max_move: must be a number above 0, or 0 for no limit")
        if not 0 <= self.seed <= MAX_INTEGER:
            raise ConfigError(f"seed: {self.seed} is not between 0 and {MAX_INTEGER}")


@dataclass(frozen=True, slots=True)
class Run:
    """An open run, ready to be served; it holds the lock of its directory."""

    app: App
    key: ServerKey
    replayed: int
    """Updates that were applied again from the journal of a server that died."""
    _held: FileLock

    @property
    def notes(self) -> list[str]:
        """Sentences about damage on disk that resuming found."""
        return self.app.training.store.notes

    def tls(self, own: ServerCertificate | None) -> ContextSource:
        """Return the TLS context: with ``own``, what returns that of a connection.

        Pairing by PIN verifies the key of the certificate in use.
        """
        if own is None:
            return self.key.context()
        own.on_key = self._set_key
        self._set_key(own.fingerprint)
        return own.context

    def _set_key(self, fingerprint: bytes) -> None:
        self.app.training.admission.fingerprint = fingerprint

    def close(self) -> None:
        """Close the files and release the lock."""
        self.app.training.close()
        self._held.close()


def open_run(task: Task, plan: Plan, options: ServerOptions) -> Run:
    """Resume the run in the directory, or begin one.

    Raises ConfigError if another server uses the directory.
    """
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / LOCK).touch(mode=0o600)
    except OSError as exc:
        raise ConfigError(f"{options.out}: cannot be created: {exc.strerror}") from exc
    held = Home(options.out).try_lock(LOCK)
    if held is None:
        raise ConfigError(
            f"{options.out}: another server uses it; choose another --out"
        )
    try:
        key = server_key.load_or_make(options.out)
        app, replayed = _open_app(task, plan, options, key)
    except BaseException:
        held.close()
        raise
    return Run(app, key, replayed, held)


def _open_app(
    task: Task, plan: Plan, options: ServerOptions, key: ServerKey
) -> tuple[App, int]:
    warm_up()
    outer = outer_optimizer(options.outer, plan, options.codec)
    make = outer.make if plan.has_differences else task.optimizer
    weights = GlobalWeights(
        task.model(),
        make,
        is_difference=plan.has_differences,
        aggregation=plan.aggregation,
        max_move=options.max_move,
    )
    store = RunStore(options.out, weights, every=options.checkpoint_every)
    admission = Admission(
        key.secret, options.pin, options.is_open, fingerprint=key.fingerprint
    )
    scheduler = RoundScheduler(plan) if plan.is_local else Scheduler(plan)
    training = Training(scheduler, admission, store)
    settings = RunSettings(
        task=task.name,
        fingerprint=task.fingerprint(),
        batch_size=options.batch_size or task.batch_size,
        seed=options.seed,
        codec=options.codec or ("int8" if plan.is_local else "none"),
        weights_codec=options.weights_codec,
        data=task.data,
    )
    return App(training, settings), training.open()
