"""A training run while it is served: combines scheduler, weights and files.

Only the event loop uses the scheduler and the admission. Only one other thread uses the
weights and the files, so the loop never waits for arithmetic or a disk. A lock makes
each update atomic: it is checked, recorded, added, and its version closed if it is
complete, before the next update is processed.
"""

from __future__ import annotations

import asyncio
import time

from ringleader.errors import ProtocolError, RingleaderError
from ringleader.paramserver.protocol.messages import RunSummary
from ringleader.paramserver.server.admission import Admission, sha256_hex
from ringleader.paramserver.server.quarantined_sources import QuarantinedSources
from ringleader.paramserver.server.scheduler import Scheduler
from ringleader.paramserver.server.storage.checkpoint import State
from ringleader.paramserver.server.storage.journal_records import (
    AcceptedUpdate,
    Joined,
    Leased,
    Left,
    Quarantined,
)
from ringleader.paramserver.server.storage.run_store import RunStore
from ringleader.paramserver.server.traffic import Traffic
from ringleader.paramserver.server.update_checks import check_update
from ringleader.paramserver.server.update_headers import UpdateHeaders
from ringleader.paramserver.server.update_norms import UpdateNorms
from ringleader.paramserver.server.update_verdict import Verdict
from ringleader.paramserver.server.weights_thread import WeightsThread
from ringleader.paramserver.server.worker_record import ShardLease

TICK_S = 0.25
"""Interval between two looks at the clock. Time-outs of rounds are seconds."""


class Training:
    """A run. Call ``open`` before it is served, and ``close`` afterwards."""

    def __init__(
        self, scheduler: Scheduler, admission: Admission, store: RunStore
    ) -> None:
        self.scheduler = scheduler
        self.admission = admission
        self.store = store
        self.traffic = Traffic()
        self._norms = UpdateNorms()
        self._quarantined = QuarantinedSources()
        self._bodies: dict[tuple[str, str], tuple[int, memoryview]] = {}
        self._began_s = time.monotonic()
        self._thread = WeightsThread(self._wake)
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._running: set[asyncio.Task[None]] = set()

    @property
    def failure(self) -> RingleaderError | None:
        """The error that ended the run, such as a full disk."""
        return self._thread.failure

    def open(self) -> int:
        """Resume the run from its files, or begin it.

        Returns how many updates were applied again from the journal.
        """
        scheduler = self.scheduler
        replayed = self.store.open(scheduler, self.admission)
        now_s = time.monotonic()
        # The last server may have been killed before it closed a complete version,
        # or before it wrote a checkpoint of it.
        if scheduler.can_close(now_s):
            shards = scheduler.next_shards(now_s)
            self.store.apply(scheduler.version, shards, scheduler.step_factor())
            scheduler.close_version(shards)
        if self.store.is_checkpoint_due(scheduler):
            self.store.checkpoint(scheduler.version, self._checkpoint_state())
        if scheduler.is_finished:
            self.store.write_summary(self.summary())
        return replayed

    def close(self) -> None:
        """Stop the thread and close the files, after the event loop has ended."""
        self._thread.close()
        self.store.close()

    def stop(self) -> None:
        """End all waits for work."""
        self._is_stopping = True
        self._wake()

    async def drain(self) -> None:
        """Wait until all submitted updates are processed."""
        while self._running:
            await asyncio.wait(set(self._running), timeout=TICK_S)

    def join_wait_s(self, nonce: str, source: str) -> int:
        """Return for how many seconds no new worker may join from ``source``.

        A repeated nonce is no new worker.
        """
        if nonce and sha256_hex(nonce) in self.store.nonces:
            return 0
        return self._quarantined.wait_s(source, time.monotonic())

    async def join(
        self, name: str, device: str, nonce: str, source: str = ""
    ) -> tuple[str, str] | None:
        """Add a worker; return its id and token, or None if the server is full.

        A repeated nonce gives the same worker with a new token. ``source`` is where
        it comes from, as ``source_of`` returns it.
        """
        async with self._lock:
            now_s = time.monotonic()
            mark = sha256_hex(nonce) if nonce else ""
            identity = self.store.nonces.get(mark)
            if identity is None:
                if not self.scheduler.workers.has_room(now_s):
                    return None
                identity = self.scheduler.workers.join(name, device, now_s)
                is_suspect = self._quarantined.is_known(source)
                self.scheduler.workers[identity].begin(source, is_suspect=is_suspect)
            self.scheduler.mark_seen(identity, now_s)
            token, digest = self.admission.issue_token(identity)
            self.store.remember_nonce(mark, identity)
            record = Joined(
                worker=identity, token=digest, name=name, device=device, nonce=mark
            )
            await self._thread.run(self.store.record_event, record)
        self._wake()
        return identity, token

    async def leave(self, identity: str) -> None:
        """Remove a worker and end its token."""
        async with self._lock:
            self.scheduler.leave(identity)
            self._norms.forget(identity)
            self.admission.revoke_tokens(identity)
            self.store.forget_nonce(identity)
            await self._thread.run(self.store.record_event, Left(identity))
        self._wake()

    async def wait_for_work(self, identity: str, wait_s: float) -> ShardLease | None:
        """Return a shard once there is one; None when the wait or training ends."""
        end_s = time.monotonic() + wait_s
        while True:
            now_s = time.monotonic()
            self.scheduler.mark_seen(identity, now_s)
            held = self.scheduler.leases.get(identity)
            found = self.scheduler.assign(identity, now_s)
            if found is not None and (held is None or held.key != found.key):
                record = Leased.of(identity, found)
                await self._thread.run(self.store.record_event, record)
            is_over = self.scheduler.is_finished or self._is_stopping
            if found is not None or is_over or now_s >= end_s:
                return found
            try:
                async with asyncio.timeout(end_s - now_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def weights_body(self, codec: str, frame: str) -> tuple[int, memoryview]:
        """Return the current version and its weights as a body."""
        async with self._lock:
            kind = (codec, frame)
            version, body = self._bodies.get(kind, (-1, memoryview(b"")))
            if version != self.scheduler.version:
                version = self.scheduler.version
                self._bodies.pop(kind, None)
                body = await self._thread.run(self.store.weights.pack, *kind)
                self._bodies[kind] = version, body
        return version, body

    async def submit(
        self, identity: str, headers: UpdateHeaders, body: memoryview
    ) -> tuple[Verdict, str]:
        """Process an update; return the verdict and, if it is INVALID, the reason.

        An update with the verdict ACCEPT is recorded. Processing goes on if the caller
        is cancelled, because an update must not be applied by half.
        """
        answer: asyncio.Future[tuple[Verdict, str]]
        answer = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._process(identity, headers, body, answer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(answer)

    async def tick(self) -> None:
        """Close a round that has timed out, and offer late shards to idle workers."""
        if self.scheduler.can_close(time.monotonic()):
            async with self._lock:
                if self.scheduler.can_close(time.monotonic()):
                    await self._close_version()
                    await self._checkpoint_if_due()
        self._wake()

    async def _process(
        self,
        identity: str,
        headers: UpdateHeaders,
        body: memoryview,
        answer: asyncio.Future[tuple[Verdict, str]],
    ) -> None:
        try:
            async with self._lock:
                answer.set_result(await self._check_and_apply(identity, headers, body))
                await self._checkpoint_if_due()
        except Exception as exc:  # noqa: BLE001 - ends the server
            failure = self._thread.fail(exc)
            if not answer.done():
                answer.set_exception(failure)

    async def _check_and_apply(
        self, identity: str, headers: UpdateHeaders, body: memoryview
    ) -> tuple[Verdict, str]:
        scheduler, key = self.scheduler, headers.key
        verdict = scheduler.verdict(identity, key)
        if verdict is not Verdict.ACCEPT:
            return verdict, ""
        weights = self.store.weights
        try:
            update, norm = await self._thread.run(
                check_update, weights.manifest, body, headers.codec
            )
        except ProtocolError as exc:
            return await self._reject(identity, exc.text, is_strike=True)
        limit = await self._thread.run(weights.norm_limit)
        present = scheduler.workers.present(time.monotonic())
        refused = self._norms.check(identity, norm, limit, present)
        if refused is not None:
            text = f"update refused: {refused.reason}"
            return await self._reject(identity, text, is_strike=refused.is_unusual)
        record = AcceptedUpdate.of(identity, headers, scheduler.update_weight(key))
        await self._thread.run(self.store.record_update, record, body, update)
        now_s, compute_s = time.monotonic(), headers.compute_s
        scheduler.record_duration(identity, headers.samples, now_s, compute_s)
        scheduler.accept(identity, key, samples=headers.samples, loss=headers.loss)
        if scheduler.can_close(time.monotonic()):
            await self._close_version()
        return Verdict.ACCEPT, ""

    async def _reject(
        self, identity: str, reason: str, *, is_strike: bool
    ) -> tuple[Verdict, str]:
        """Refuse an update; quarantine its worker if that was one too many."""
        if self.scheduler.reject(identity, is_strike=is_strike):
            self._norms.forget(identity)
            source = self.scheduler.workers[identity].source
            self._quarantined.add(source, time.monotonic())
            await self._thread.run(self.store.record_event, Quarantined(identity))
        return Verdict.INVALID, reason

    async def _close_version(self) -> None:
        scheduler = self.scheduler
        shards = scheduler.next_shards(time.monotonic())
        await self._thread.run(
            self.store.apply, scheduler.version, shards, scheduler.step_factor()
        )
        scheduler.close_version(shards)
        self._wake()

    async def _checkpoint_if_due(self) -> None:
        if self.store.is_checkpoint_due(self.scheduler):
            state = self._checkpoint_state()
            await self._thread.run(self.store.checkpoint, self.scheduler.version, state)
            if self.scheduler.is_finished:
                await self._thread.run(self.store.write_summary, self.summary())

    def _checkpoint_state(self) -> State:
        return self.store.checkpoint_state(
            self.scheduler, self.admission, self.seconds()
        )

    def seconds(self) -> float:
        """Seconds of training, including those before restarts of the server."""
        return self.store.earlier_s + time.monotonic() - self._began_s

    def summary(self) -> RunSummary:
        """Build the totals of the run."""
        workers = self.scheduler.workers.values()
        return RunSummary(
            version=self.scheduler.version,
            rounds=self.scheduler.plan.rounds,
            seconds=round(self.seconds(), 3),
            loss=self.scheduler.losses[-1][1] if self.scheduler.losses else None,
            workers=len(workers),
            updates=sum(w.updates for w in workers),
            samples=sum(w.samples for w in workers),
            bytes_received=sum(self.traffic.received.values()),
            bytes_sent=sum(self.traffic.sent.values()),
        )

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
