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
from ringleader.paramserver.worker.error_feedback import Feedback
from ringleader.paramserver.worker.join import JSON, Entry, WorkerSettings, prepare
from ringleader.paramserver.worker.observer import Progress, Tally, Watch
from ringleader.paramserver.worker.pin_pairing import Pairing
from ringleader.paramserver.worker.prefetch import Errand, Feed
from ringleader.paramserver.worker.server_address import Place
from ringleader.paramserver.worker.server_messages import Json, Terms
from ringleader.paramserver.worker.session import SERVER, Answer, Request, Session
from ringleader.paramserver.worker.trainer import Bench, Result, Stint
from ringleader.paramserver.worker.transfers import Download, Upload, Weights

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

    def __init__(self, settings: WorkerSettings, place: Place, watch: Watch) -> None:
        self.tally = Tally()
        self.session = Session(place, watch)
        if settings.pin is not None or settings.ask_pin is not None:
            pairing = Pairing(place, watch, settings.pin, settings.ask_pin)
            self.session.vouch = pairing.run
        self.summary: Json = {}
        """What the server said at the end."""
        self._settings = settings
        self._watch = watch
        self._device = pick_device(settings.device)
        self._terms: Terms | None = None
        self._feed: Feed | None = None
        self._held: Weights | None = None
        self._download: Download | None = None
        self._ahead: Errand[Weights | Answer] | None = None

    def run(self) -> None:
        """Train until the server says that it is over."""
        self._material = prepare(self._settings.task, self.session)
        self._entry = Entry(
            self._settings,
            self.session,
            self._material,
            device=str(self._device),
            watch=self._watch,
            adopt=self._adopt,
        )
        self._entry.join()
        self.tally.began_s = time.monotonic()
        while (stint := self._next()) is not None:
            self._work_on(stint)

    def close(self) -> None:
        """Tell the server that we go, if it can be told at once; drop everything."""
        if self._feed is not None:
            self._feed.close()
        self.session.stop()
        if self.session.token is not None:
            request = Request("POST", "/v1/leave", JSON, b"{}", timeout_s=_LEAVE_S)
            with contextlib.suppress(PeerError):
                self.session.attempt(request)
        self.session.close()
        # A thread that is inside torch when the interpreter ends aborts the process.
        deadline = Deadline.after(_THREADS_S)
        for thread in (self._feed, self._ahead):
            if thread is not None:
                thread.wait(deadline.left_s())

    def progress(self) -> Progress:
        """Where we stand."""
        rounds = self._terms.rounds if self._terms else 0
        return Progress(
            version=self.tally.version,
            rounds=rounds,
            loss=self.tally.loss,
            counted=self.tally.counted,
            dropped=self.tally.dropped,
            samples=self.tally.samples,
            sent_bytes=self.session.sent_bytes,
            received_bytes=self.session.received_bytes,
            seconds=self.tally.seconds,
            left_s=self.tally.left_s(rounds),
        )

    def _adopt(self, terms: Terms) -> None:
        """Set up for what the server wants; it may be another than before."""
        material = self._material
        codec = self._settings.codec or terms.codec
        feedback = Feedback(material.manifest, codec)
        if feedback.wire_name not in terms.codecs:
            known = ", ".join(terms.codecs)
            raise ConfigError(f"--codec {codec}: the server takes {known}")
        if self._terms is None or self._terms.seed != terms.seed:
            self._bench = Bench(
                material.task, material.samples, self._device, seed=terms.seed
            )
        self._weights_codec = self._settings.weights_codec or terms.weights_codec
        self._feedback, self._terms = feedback, terms
        self.tally.version, self.tally.first_version = terms.version, None
        self._held = self._download = self._ahead = None

    def _next(self) -> Stint | None:
        """What to do next; None when training is over."""
        request = Request("GET", f"/v1/work?wait={_WAIT_S}")
        if self._terms is not None and self.tally.version >= self._terms.rounds:
            return self._last_word(request)
        while True:
            asked_s = time.monotonic()
            answer = self.session.ask(request)
            if answer.status == 401:
                self._entry.join_again()
                answer = self.session.ask(request)
            if answer.status == 200:
                break
            if answer.status != 204:
                raise PeerRefused(SERVER, answer.message())
            if time.monotonic() - asked_s < _IDLE_S:
                time.sleep(_IDLE_S)
        return self._told(answer.json())

    def _last_word(self, request: Request) -> Stint | None:
        """The same when the last version is made: the server may be gone already."""
        for _ in range(_LAST_TRIES):
            with contextlib.suppress(PeerError):
                return self._told(self.session.attempt(request).json())
            time.sleep(_IDLE_S)
        return None

    def _told(self, found: Json) -> Stint | None:
        if found.get("kind") != "finished":
            return server_messages.stint_of(found)
        self.tally.version = server_messages.whole(found, "version")
        summary = found.get("summary")
        self.summary = summary if isinstance(summary, dict) else {}
        return None

    def _work_on(self, stint: Stint) -> None:
        feed = self._feed_of(stint)
        weights = self._weights_of(stint)
        if weights is None:
            return  # the round is over, or the server forgot us: ask again
        stint = replace(stint, version=weights.version)
        self._material.manifest.load(self._bench.model, weights.tensors)
        self._feed = Feed(self._bench, _likely_next(stint))
        try:
            result = self._bench.compute(self._material.manifest, stint, feed)
        finally:
            feed.close()
        self._send(stint, result)

    def _feed_of(self, stint: Stint) -> Feed:
        """The batches: those read ahead, if we guessed rightly."""
        feed = self._feed
        if feed is not None and feed.fits(stint):
            return feed
        if feed is not None:
            feed.close()
        self._feed = Feed(self._bench, stint)
        return self._feed

    def _weights_of(self, stint: Stint) -> Weights | None:
        """The weights to compute on: held, on their way, or fetched now."""
        if self._ahead is not None:
            with contextlib.suppress(PeerError):  # fetched again, with patience
                ahead = self._ahead.result()
                if isinstance(ahead, Weights):
                    self._held, self._download = ahead, None
            self._ahead = None
        if not self._holds(stint.version):
            found = self._fetching(stint.version).run(self._held)
            self._download = None
            if not isinstance(found, Weights):
                return None
            if self._is_bulk() and found.version != stint.version:
                text = f"weights {found.version} came, {stint.version} were asked for"
                raise ProtocolError(SERVER, text)
            self._held = found
        return self._held

    def _holds(self, version: int) -> bool:
        """Whether we have these weights already, or newer ones outside rounds."""
        held = self._held.version if self._held is not None else -1
        return held == version or (held > version and not self._is_bulk())

    def _send(self, stint: Stint, result: Result) -> None:
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Samples": str(result.num_samples),
            "X-Loss": repr(result.loss),
            "X-Codec": self._feedback.wire_name,
            "X-First-Batch": str(stint.first_batch),
            "X-Worker-Version": str(stint.version),
        }
        path = f"/v1/updates/{stint.version}/{stint.shard}"
        body = self._feedback.pack(result.update)
        upload = Upload(self.session, path, body, headers)
        answer, version = upload.run(), stint.version
        if answer.status in (200, 409):
            version = server_messages.whole(answer.json(), "version")
        elif answer.status == 422:
            self._watch.noted(f"version {version}: update refused: {answer.message()}")
        self._book(answer, stint, result, version)
        self._look_ahead(version)

    def _book(self, answer: Answer, stint: Stint, result: Result, version: int) -> None:
        """Note what became of an update."""
        tally = self.tally
        if answer.status == 200 and answer.json().get("counted") is True:
            self._feedback.counted()
            tally.counted += 1
            tally.samples += result.num_samples
            tally.loss = result.loss
        else:
            tally.dropped += 1
        if tally.first_version is None:
            tally.first_version = stint.version
        tally.version = max(tally.version, version)
        self._watch.stepped(self.progress())

    def _look_ahead(self, version: int) -> None:
        """Fetch a new version while we ask what to do with it."""
        held = self._held.version if self._held is not None else -1
        rounds = self._terms.rounds if self._terms else 0
        if held < version < rounds:
            download = self._fetching(version)
            self._ahead = Errand(download.try_once, f"weights {version}")

    def _fetching(self, version: int) -> Download:
        """The download of ``version``, with what it has already."""
        if self._download is None or self._download.version != version:
            self._download = Download(
                self.session, self._material.manifest, self._weights_codec, version
            )
        return self._download

    def _is_bulk(self) -> bool:
        return self._terms is not None and self._terms.is_bulk


def _likely_next(stint: Stint) -> Stint:
    """What the same worker gets in the next round if nobody comes or goes."""
    first = stint.first_batch + stint.shards * stint.steps
    return replace(stint, version=stint.version + 1, first_batch=first)
