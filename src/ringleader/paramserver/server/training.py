"""One training run as it is served: decisions, weights and files brought together.

The state machine and the entrance are touched by the event loop only. Weights and files
are touched by one thread of their own, so that the loop never waits for arithmetic or a
disk. A lock keeps together what belongs together: an update is decoded, recorded,
added, and the version closed, before the next one is looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from ringleader.errors import InternalError, ProtocolError, RingleaderError
from ringleader.paramserver.server import scheduler_state
from ringleader.paramserver.server.admission import Entrance, hash_of
from ringleader.paramserver.server.assignment import Assignment, Key, Verdict
from ringleader.paramserver.server.global_weights import Usual
from ringleader.paramserver.server.journal import Meta
from ringleader.paramserver.server.run_store import Store
from ringleader.paramserver.server.scheduler import Versions

TICK_S = 0.25
"""How often the clock is looked at: shards and rounds are late by seconds."""

_T = TypeVar("_T")
_P = ParamSpec("_P")


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker says about its update, beside the update."""

    key: Key
    samples: int
    loss: float
    codec: str


@dataclass(slots=True)
class Counts:
    """Bytes of bodies, by worker."""

    received: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)


class Training:
    """A run. Construct it, ``open`` it, serve it, ``close`` it."""

    def __init__(self, versions: Versions, entrance: Entrance, store: Store) -> None:
        self.versions = versions
        self.entrance = entrance
        self.store = store
        self.counts = Counts()
        self.failure: RingleaderError | None = None
        """Why training cannot go on: a disk that is full, for one."""
        self._usual = Usual()
        self._bodies: dict[str, tuple[int, memoryview]] = {}
        self._began_s = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "ringleader-weights")
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._running: set[asyncio.Task[None]] = set()

    def open(self) -> int:
        """Resume from the files, or begin; how many updates were applied again."""
        versions = self.versions
        replayed = self.store.open(versions, self.entrance)
        now_s = time.monotonic()
        if versions.is_ripe(now_s):  # killed before the version of an update could end
            shards = versions.shards_next(now_s)
            self.store.apply(versions.version, shards, versions.factor())
            versions.close(shards)
        if self.store.is_due(versions):  # ... or before the checkpoint of its version
            state = self.store.state(versions, self.entrance, self.seconds())
            self.store.checkpoint(versions.version, state)
        if versions.is_finished:
            self.store.conclude(self.summary())
        return replayed

    def close(self) -> None:
        """Stop the thread and let go of the files; the event loop is over."""
        self._thread.shutdown()
        self.store.close()

    def stop(self) -> None:
        """Send everybody away who waits for work."""
        self._is_stopping = True
        self._wake()

    async def settle(self) -> None:
        """Wait until what has come is processed."""
        while self._running:
            await asyncio.wait(set(self._running), timeout=TICK_S)

    async def join(self, name: str, device: str, nonce: str) -> tuple[str, str] | None:
        """A worker and its token, the same worker for the same nonce; None if full."""
        async with self._lock:
            now_s = time.monotonic()
            mark = hash_of(nonce) if nonce else ""
            identity = self.store.nonces.get(mark)
            if identity is None:
                if not self.versions.has_room(now_s):
                    return None
                identity = self.versions.join(name, device, now_s)
            self.versions.see(identity, now_s)
            token, digest = self.entrance.issue(identity)
            meta: Meta = {"kind": "joined", "worker": identity, "token": digest}
            meta |= {"name": name, "device": device, "nonce": mark}
            self.store.remember(mark, identity)
            await self._run(self.store.note, meta)
        self._wake()
        return identity, token

    async def leave(self, identity: str) -> None:
        """The worker is gone for good."""
        async with self._lock:
            self.versions.leave(identity)
            self.entrance.forget(identity)
            self.store.forget(identity)
            await self._run(self.store.note, {"kind": "left", "worker": identity})
        self._wake()

    async def work(self, identity: str, wait_s: float) -> Assignment | None:
        """Something to do, as soon as there is; None when the wait or training ends."""
        end_s = time.monotonic() + wait_s
        while True:
            now_s = time.monotonic()
            self.versions.see(identity, now_s)
            found = self.versions.ask(identity, now_s)
            is_over = self.versions.is_finished or self._is_stopping
            if found is not None or is_over or now_s >= end_s:
                return found
            try:
                async with asyncio.timeout(end_s - now_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def body(self, codec: str) -> tuple[int, memoryview]:
        """The current version and its weights as a body."""
        async with self._lock:
            version, body = self._bodies.get(codec, (-1, memoryview(b"")))
            if version != self.versions.version:
                version = self.versions.version
                self._bodies.pop(codec, None)
                body = await self._run(self.store.weights.pack, codec)
                self._bodies[codec] = version, body
        return version, body

    async def submit(
        self, identity: str, told: Told, body: memoryview
    ) -> tuple[Verdict, str]:
        """What became of an update; when it is TAKE, it is recorded.

        The work goes on when whoever asked goes away: half an update is none.
        """
        answer: asyncio.Future[tuple[Verdict, str]]
        answer = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._process(identity, told, body, answer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(answer)

    async def tick(self) -> None:
        """Look at the clock: end rounds that are late, offer shards that are late."""
        if self.versions.is_ripe(time.monotonic()):
            async with self._lock:
                if self.versions.is_ripe(time.monotonic()):
                    await self._close_version()
                    await self._checkpoint_if_due()
        self._wake()

    async def _process(
        self,
        identity: str,
        told: Told,
        body: memoryview,
        answer: asyncio.Future[tuple[Verdict, str]],
    ) -> None:
        try:
            async with self._lock:
                answer.set_result(await self._take(identity, told, body))
                await self._checkpoint_if_due()
        except Exception as exc:  # noqa: BLE001 - the top of a task: it ends the server
            failure = self._fail(exc)
            if not answer.done():
                answer.set_exception(failure)

    async def _take(
        self, identity: str, told: Told, body: memoryview
    ) -> tuple[Verdict, str]:
        versions, key = self.versions, told.key
        verdict = versions.judge(identity, key)
        if verdict is not Verdict.TAKE:
            return verdict, ""
        try:
            update, norm = await self._run(self.store.decode, body, told.codec)
            self._usual.check(norm)
        except ProtocolError as exc:
            if versions.reject(identity):
                meta: Meta = {"kind": "quarantined", "worker": identity}
                await self._run(self.store.note, meta)
            return Verdict.RUBBISH, exc.text
        await self._run(self.store.record, _meta(identity, told), body, update)
        versions.count(identity, key, samples=told.samples, loss=told.loss)
        versions.time(identity, told.samples, time.monotonic())
        if versions.is_ripe(time.monotonic()):
            await self._close_version()
        return Verdict.TAKE, ""

    async def _close_version(self) -> None:
        versions = self.versions
        shards = versions.shards_next(time.monotonic())
        await self._run(self.store.apply, versions.version, shards, versions.factor())
        versions.close(shards)
        self._wake()

    async def _checkpoint_if_due(self) -> None:
        if self.store.is_due(self.versions):
            state = self.store.state(self.versions, self.entrance, self.seconds())
            await self._run(self.store.checkpoint, self.versions.version, state)
            if self.versions.is_finished:
                await self._run(self.store.conclude, self.summary())

    def seconds(self) -> float:
        """How long training has been served, over all lives of the server."""
        return self.store.before_s + time.monotonic() - self._began_s

    def summary(self) -> dict[str, Any]:
        """What is said at the end."""
        workers = self.versions.workers.values()
        return {
            "version": self.versions.version,
            "rounds": self.versions.plan.rounds,
            "seconds": round(self.seconds(), 3),
            "loss": self.versions.losses[-1][1] if self.versions.losses else None,
            "workers": len(workers),
            "updates": sum(w.updates for w in workers),
            "samples": sum(w.samples for w in workers),
            "bytes_received": sum(self.counts.received.values()),
            "bytes_sent": sum(self.counts.sent.values()),
        }

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(
        self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        if self.failure is not None:
            raise self.failure
        loop = asyncio.get_running_loop()
        work = self._thread.submit(call, *args, **kwargs)
        try:
            return await asyncio.wrap_future(work, loop=loop)
        except ProtocolError:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, half a change is none
            failure = self._fail(exc)
        raise failure

    def _fail(self, exc: Exception) -> RingleaderError:
        """Stop rather than go on with half a change, or forget what was recorded."""
        if self.failure is None:
            if not isinstance(exc, RingleaderError):
                exc = InternalError(f"serving failed: {exc!r}")
            self.failure = exc
            self._wake()
        return self.failure


def _meta(identity: str, told: Told) -> Meta:
    return {
        "kind": "update",
        "worker": identity,
        "key": scheduler_state.key_to_json(told.key),
        "samples": told.samples,
        "loss": told.loss,
        "codec": told.codec,
    }
