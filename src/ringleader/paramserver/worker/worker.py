"""A worker: asks for a stint, fetches weights, computes, sends what it found, again.

It keeps nothing that matters. Whatever is lost on the way, a restart of either side
included, is asked for or sent again, and the server counts each update once.

What runs beside what: the batches of the stint that probably follows are read while
this one is computed, and when the server names the version that our update made, its
weights are on their way while we ask what to do with them. Fetching weights while still
computing would only give old ones: the next version waits for what is being computed.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerError, PeerRefused, ProtocolError
from ringleader.paramserver.tasks.device import pick_device
from ringleader.paramserver.worker import server_messages
from ringleader.paramserver.worker.error_feedback import ErrorFeedback
from ringleader.paramserver.worker.join import JSON, Joiner, WorkerSettings, prepare
from ringleader.paramserver.worker.observer import Observer, Progress, WorkTotals
from ringleader.paramserver.worker.pin_pairing import PinPairing
from ringleader.paramserver.worker.prefetch import BackgroundCall, BatchPrefetcher
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.server_messages import Json, Terms
from ringleader.paramserver.worker.session import SERVER, Request, Response, Session
from ringleader.paramserver.worker.trainer import Assignment, StepResult, Trainer
from ringleader.paramserver.worker.transfers import Download, DownloadedWeights, Upload

_WAIT_S = 25
"""Of a long-poll: below the half minute after which many proxies cut a line."""
_LEAVE_S = 3.0
_THREADS_S = 5.0
"""For what is being read to be read: longer would look as if Ctrl-C did nothing."""
_IDLE_S = 0.5
"""Between two questions, if something on the way does not let the server wait."""
_LAST_TRIES = 6
"""To hear the server's summary; it is nice to have."""


class Worker:
    """One worker's life. One thread; ``close`` leaves the training."""

    def __init__(
        self, settings: WorkerSettings, address: ServerAddress, observer: Observer
    ) -> None:
        self.totals = WorkTotals()
        self.session = Session(address, observer)
        if settings.pin is not None or settings.ask_pin is not None:
            pairing = PinPairing(address, observer, settings.pin, settings.ask_pin)
            self.session.pair_by_pin = pairing.run
        self.summary: Json = {}
        """What the server said at the end."""
        self._settings = settings
        self._observer = observer
        self._device = pick_device(settings.device)
        self._terms: Terms | None = None
        self._prefetcher: BatchPrefetcher | None = None
        self._held: DownloadedWeights | None = None
        self._download: Download | None = None
        self._ahead: BackgroundCall[DownloadedWeights | Response] | None = None

    def run(self) -> None:
        """Train until the server says that it is over."""
        self._prepared = prepare(self._settings.task, self.session)
        self._joiner = Joiner(
            self._settings,
            self.session,
            self._prepared,
            device=str(self._device),
            observer=self._observer,
            adopt=self._adopt,
        )
        self._joiner.join()
        self.totals.began_s = time.monotonic()
        while (assignment := self._next()) is not None:
            self._work_on(assignment)

    def close(self) -> None:
        """Tell the server that we go, if it can be told at once; drop everything."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        self.session.stop()
        if self.session.token is not None:
            request = Request("POST", "/v1/leave", JSON, b"{}", timeout_s=_LEAVE_S)
            with contextlib.suppress(PeerError):
                self.session.send_once(request)
        self.session.close()
        # A thread that is inside torch when the interpreter ends aborts the process.
        deadline = Deadline.after(_THREADS_S)
        for thread in (self._prefetcher, self._ahead):
            if thread is not None:
                thread.wait(deadline.left_s())

    def progress(self) -> Progress:
        """Where we stand."""
        rounds = self._terms.rounds if self._terms else 0
        return Progress(
            version=self.totals.version,
            rounds=rounds,
            loss=self.totals.loss,
            counted=self.totals.counted,
            dropped=self.totals.dropped,
            samples=self.totals.samples,
            sent_bytes=self.session.sent_bytes,
            received_bytes=self.session.received_bytes,
            seconds=self.totals.seconds,
            left_s=self.totals.left_s(rounds),
        )

    def _adopt(self, terms: Terms) -> None:
        """Set up for what the server wants; it may be another than before."""
        prepared = self._prepared
        codec = self._settings.codec or terms.codec
        feedback = ErrorFeedback(prepared.manifest, codec)
        if feedback.wire_name not in terms.codecs:
            known = ", ".join(terms.codecs)
            raise ConfigError(f"--codec {codec}: the server takes {known}")
        if self._terms is None or self._terms.seed != terms.seed:
            self._trainer = Trainer(
                prepared.task, prepared.samples, self._device, seed=terms.seed
            )
        self._weights_codec = self._settings.weights_codec or terms.weights_codec
        self._feedback, self._terms = feedback, terms
        self.totals.version, self.totals.first_version = terms.version, None
        self._held = self._download = self._ahead = None

    def _next(self) -> Assignment | None:
        """What to do next; None when training is over."""
        request = Request("GET", f"/v1/work?wait={_WAIT_S}")
        if self._terms is not None and self.totals.version >= self._terms.rounds:
            return self._last_word(request)
        while True:
            asked_s = time.monotonic()
            answer = self.session.send(request)
            if answer.status == 401:
                self._joiner.rejoin()
                answer = self.session.send(request)
            if answer.status == 200:
                break
            if answer.status != 204:
                raise PeerRefused(SERVER, answer.message())
            if time.monotonic() - asked_s < _IDLE_S:
                time.sleep(_IDLE_S)
        return self._told(answer.json())

    def _last_word(self, request: Request) -> Assignment | None:
        """The same when the last version is made: the server may be gone already."""
        for _ in range(_LAST_TRIES):
            with contextlib.suppress(PeerError):
                return self._told(self.session.send_once(request).json())
            time.sleep(_IDLE_S)
        return None

    def _told(self, found: Json) -> Assignment | None:
        if found.get("kind") != "finished":
            return server_messages.assignment_of(found)
        self.totals.version = server_messages.whole(found, "version")
        summary = found.get("summary")
        self.summary = summary if isinstance(summary, dict) else {}
        return None

    def _work_on(self, assignment: Assignment) -> None:
        feed = self._feed_of(assignment)
        weights = self._weights_of(assignment)
        if weights is None:
            return  # the round is over, or the server forgot us: ask again
        assignment = replace(assignment, version=weights.version)
        self._prepared.manifest.load(self._trainer.model, weights.tensors)
        self._prefetcher = BatchPrefetcher(self._trainer, _likely_next(assignment))
        try:
            result = self._trainer.compute(self._prepared.manifest, assignment, feed)
        finally:
            feed.close()
        self._send(assignment, result)

    def _feed_of(self, assignment: Assignment) -> BatchPrefetcher:
        """The batches: those read ahead, if we guessed rightly."""
        feed = self._prefetcher
        if feed is not None and feed.fits(assignment):
            return feed
        if feed is not None:
            feed.close()
        self._prefetcher = BatchPrefetcher(self._trainer, assignment)
        return self._prefetcher

    def _weights_of(self, assignment: Assignment) -> DownloadedWeights | None:
        """The weights to compute on: held, on their way, or fetched now."""
        if self._ahead is not None:
            with contextlib.suppress(PeerError):  # fetched again, with patience
                ahead = self._ahead.result()
                if isinstance(ahead, DownloadedWeights):
                    self._held, self._download = ahead, None
            self._ahead = None
        if not self._holds(assignment.version):
            found = self._fetching(assignment.version).run(self._held)
            self._download = None
            if not isinstance(found, DownloadedWeights):
                return None
            if self._is_bulk() and found.version != assignment.version:
                text = (
                    f"weights {found.version} came, {assignment.version} were asked for"
                )
                raise ProtocolError(SERVER, text)
            self._held = found
        return self._held

    def _holds(self, version: int) -> bool:
        """Whether we have these weights already, or newer ones outside rounds."""
        held = self._held.version if self._held is not None else -1
        return held == version or (held > version and not self._is_bulk())

    def _send(self, assignment: Assignment, result: StepResult) -> None:
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Samples": str(result.num_samples),
            "X-Loss": repr(result.loss),
            "X-Codec": self._feedback.wire_name,
            "X-First-Batch": str(assignment.first_batch),
            "X-Worker-Version": str(assignment.version),
        }
        path = f"/v1/updates/{assignment.version}/{assignment.shard}"
        body = self._feedback.pack(result.update)
        upload = Upload(self.session, path, body, headers)
        answer, version = upload.run(), assignment.version
        if answer.status in (200, 409):
            version = server_messages.whole(answer.json(), "version")
        elif answer.status == 422:
            self._observer.noted(
                f"version {version}: update refused: {answer.message()}"
            )
        self._book(answer, assignment, result, version)
        self._look_ahead(version)

    def _book(
        self, answer: Response, assignment: Assignment, result: StepResult, version: int
    ) -> None:
        """Note what became of an update."""
        totals = self.totals
        if answer.status == 200 and answer.json().get("counted") is True:
            self._feedback.counted()
            totals.counted += 1
            totals.samples += result.num_samples
            totals.loss = result.loss
        else:
            totals.dropped += 1
        if totals.first_version is None:
            totals.first_version = assignment.version
        totals.version = max(totals.version, version)
        self._observer.stepped(self.progress())

    def _look_ahead(self, version: int) -> None:
        """Fetch a new version while we ask what to do with it."""
        held = self._held.version if self._held is not None else -1
        rounds = self._terms.rounds if self._terms else 0
        if held < version < rounds:
            download = self._fetching(version)
            self._ahead = BackgroundCall(download.try_once, f"weights {version}")

    def _fetching(self, version: int) -> Download:
        """The download of ``version``, with what it has already."""
        if self._download is None or self._download.version != version:
            self._download = Download(
                self.session, self._prepared.manifest, self._weights_codec, version
            )
        return self._download

    def _is_bulk(self) -> bool:
        return self._terms is not None and self._terms.is_bulk


def _likely_next(assignment: Assignment) -> Assignment:
    """What the same worker gets in the next round if nobody comes or goes."""
    first = assignment.first_batch + assignment.shards * assignment.steps
    return replace(assignment, version=assignment.version + 1, first_batch=first)
