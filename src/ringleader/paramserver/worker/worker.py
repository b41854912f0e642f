"""A worker: asks for an assignment, fetches weights, computes, uploads, and repeats.

It keeps no state that matters. Whatever is lost, also by a restart of either side, is
requested or sent again, and the server counts each update once.

Two things run beside the computation. The batches of the assignment that will probably
follow are read while this one is computed. When the server names the version that an
update completed, its weights are downloaded while the next assignment is requested.
Downloading weights earlier would only give old ones: the next version waits for the
update that is being computed.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Self

import torch
from msgspec.structs import replace

from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    PeerError,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    ProtocolError,
)
from ringleader.paramserver.protocol.messages import (
    Assignment,
    ErrorAnswer,
    Finished,
    JoinAnswer,
    UpdateAnswer,
    WorkAnswer,
)
from ringleader.paramserver.tasks.device import pick_device
from ringleader.paramserver.worker.agreement import check_assignment
from ringleader.paramserver.worker.error_feedback import ErrorFeedback
from ringleader.paramserver.worker.http_errors import SERVER
from ringleader.paramserver.worker.join import Joiner, WorkerSettings, prepare_task
from ringleader.paramserver.worker.observer import Observer, Progress, WorkTotals
from ringleader.paramserver.worker.pin_pairing import PinPairing
from ringleader.paramserver.worker.prefetch import (
    BackgroundCall,
    BatchPrefetcher,
    likely_next,
)
from ringleader.paramserver.worker.refusals import Refusals
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.session import JSON, Request, Response, Session
from ringleader.paramserver.worker.trainer import StepResult, Trainer
from ringleader.paramserver.worker.transfers import Download, DownloadedWeights, Upload

_WAIT_S = 25
"""Duration of a long poll, below the 30 s after which many proxies disconnect."""
_LEAVE_S = 3.0
_THREADS_S = 5.0
"""Time for threads to end: longer would look as if Ctrl-C did nothing."""
_IDLE_S = 0.5
"""Pause between requests for work if a proxy does not let the server wait."""
_LAST_TRIES = 6
"""Requests for work after the last version; the worker can do without a response."""


class Worker:
    """Trains for one server. One thread; ``close`` leaves the run."""

    def __init__(
        self,
        settings: WorkerSettings,
        session: Session,
        observer: Observer,
        device: torch.device,
    ) -> None:
        self.totals = WorkTotals()
        self.session = session
        self._settings = settings
        self._observer = observer
        self._device = device
        self._run: JoinAnswer | None = None
        self._refusals = Refusals(observer)
        self._prefetcher: BatchPrefetcher | None = None
        self._has_left = False
        """Whether it is done before the training is, as the user wanted."""
        self._held: DownloadedWeights | None = None
        self._download: Download | None = None
        self._ahead: BackgroundCall[DownloadedWeights | Response] | None = None

    @classmethod
    def open(
        cls, settings: WorkerSettings, address: ServerAddress, observer: Observer
    ) -> Self:
        """Open a session with the server, which pairs by PIN where it must."""
        device = pick_device(settings.device)
        session = Session.open(address, observer)
        if settings.pin is not None or settings.ask_pin is not None:
            pairing = PinPairing(address, observer, settings.pin, settings.ask_pin)
            session.pair_by_pin = pairing.run
        return cls(settings, session, observer, device)

    def run(self) -> bool:
        """Join, and train until the server says that training is over.

        Returns False if it left before, at a limit of the user's.
        """
        if self._settings.most_seconds:
            self.session.leave_at_s = time.monotonic() + self._settings.most_seconds
        try:
            self._prepare()
            self._joiner.join()
            self._train()
        except (PeerUnreachable, PeerLost):
            if time.monotonic() < self.session.leave_at_s:
                raise
            self._has_left = True
        return not self._has_left

    def _prepare(self) -> None:
        self._prepared = prepare_task(self._settings, self.session, self._observer)
        self._joiner = Joiner(
            self._settings,
            self.session,
            self._prepared,
            device=str(self._device),
            observer=self._observer,
            adopt=self._adopt,
        )

    def _train(self) -> None:
        self.totals.began_s = time.monotonic()
        while (assignment := self._next_assignment()) is not None:
            self._work_on(assignment)

    def _is_at_limit(self) -> bool:
        """Return whether the user wants no further update of this worker."""
        sent = self.totals.counted + self.totals.dropped
        most = self._settings.most_updates
        return (most > 0 and sent >= most) or (
            time.monotonic() >= self.session.leave_at_s
        )

    def close(self) -> None:
        """Leave the run if the server can be told at once, and release everything."""
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
        """Return the progress so far."""
        rounds = self._run.rounds if self._run else 0
        session = self.session
        return self.totals.progress(rounds, session.sent_bytes, session.received_bytes)

    def _adopt(self, run: JoinAnswer) -> None:
        """Set up for the settings of the run, which may differ after a rejoin."""
        prepared = self._prepared
        codec = self._settings.codec or run.codec
        feedback = ErrorFeedback(prepared.manifest, codec)
        if feedback.wire_name not in run.codecs:
            known = ", ".join(run.codecs)
            raise ConfigError(f"--codec {codec}: the server takes {known}")
        agreed = self._run
        if agreed is None or (agreed.seed, agreed.mode) != (run.seed, run.mode):
            self._trainer = self._make_trainer(run)
        self._weights_codec = self._settings.weights_codec or run.weights_codec
        self._feedback, self._run = feedback, run
        self.totals.version, self.totals.first_version = run.version, None
        self._held = self._download = self._ahead = None

    def _make_trainer(self, run: JoinAnswer) -> Trainer:
        task, samples = self._prepared.task, self._prepared.samples
        seed, is_local = run.seed, run.is_local
        return Trainer(task, samples, self._device, seed=seed, is_local=is_local)

    def _next_assignment(self) -> Assignment | None:
        """Request work until there is some; None when this worker is done."""
        if self._run is not None and self.totals.version >= self._run.rounds:
            return self._last_answer(Request("GET", f"/v1/work?wait={_WAIT_S}"))
        while True:
            if self._is_at_limit():  # here, between two updates, nothing is lost
                self._has_left = True
                return None
            asked_s = time.monotonic()
            wait_s = math.ceil(min(_WAIT_S, self.session.leave_at_s - asked_s))
            request = Request("GET", f"/v1/work?wait={wait_s}")
            response = self.session.send(request)
            if response.status == 401:
                self._joiner.rejoin()
                response = self.session.send(request)
            if response.status == 200:
                break
            if response.status != 204:
                raise PeerRefused(SERVER, response.message())
            if time.monotonic() - asked_s < _IDLE_S:
                time.sleep(_IDLE_S)
        return self._read_work(response)

    def _last_answer(self, request: Request) -> Assignment | None:
        """Ask once more after the last version; the server may be gone."""
        for _ in range(_LAST_TRIES):
            with contextlib.suppress(PeerError):
                return self._read_work(self.session.send_once(request))
            time.sleep(_IDLE_S)
        return None

    def _read_work(self, response: Response) -> Assignment | None:
        answer: WorkAnswer = response.decode(WorkAnswer)  # type: ignore[arg-type]
        if isinstance(answer, Finished):
            self.totals.version = answer.version
            return None
        assert self._run is not None, "it has joined"
        check_assignment(self._run, answer)
        return answer

    def _work_on(self, assignment: Assignment) -> None:
        prefetcher = self._prefetcher_for(assignment)
        weights = self._weights_for(assignment)
        if weights is None:
            return  # the round is over, or the server forgot this worker: ask again
        assignment = replace(assignment, version=weights.version)
        self._prepared.manifest.load(self._trainer.model, weights.tensors)
        if not (self._run and self._run.is_local):  # else it depends on all speeds
            following = likely_next(assignment)
            self._prefetcher = BatchPrefetcher.start(self._trainer, following)
        try:
            manifest = self._prepared.manifest
            result = self._trainer.compute(manifest, assignment, prefetcher)
        finally:
            prefetcher.close()
        self._upload(assignment, result)

    def _prefetcher_for(self, assignment: Assignment) -> BatchPrefetcher:
        """Return the running prefetcher if it reads these batches, else start one."""
        prefetcher = self._prefetcher
        if prefetcher is not None and prefetcher.is_for(assignment):
            return prefetcher
        if prefetcher is not None:
            prefetcher.close()
        self._prefetcher = BatchPrefetcher.start(self._trainer, assignment)
        return self._prefetcher

    def _weights_for(self, assignment: Assignment) -> DownloadedWeights | None:
        """Return the weights to compute on; None if the server refuses them."""
        if self._ahead is not None:
            with contextlib.suppress(PeerError):  # downloaded below, with retries
                ahead = self._ahead.result()
                if isinstance(ahead, DownloadedWeights):
                    self._held, self._download = ahead, None
            self._ahead = None
        if not self._holds(assignment.version):
            found = self._download_of(assignment.version).run(self._held)
            self._download = None
            if not isinstance(found, DownloadedWeights):
                return None
            if self._is_bulk() and found.version != assignment.version:
                text = f"it sent weights {found.version} instead of"
                raise ProtocolError(SERVER, f"{text} {assignment.version}")
            self._held = found
        return self._held

    def _holds(self, version: int) -> bool:
        """Return whether the weights of a version, or usable newer ones, are here."""
        held = self._held.version if self._held is not None else -1
        return held == version or (held > version and not self._is_bulk())

    def _upload(self, assignment: Assignment, result: StepResult) -> None:
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Samples": str(result.num_samples),
            "X-Loss": repr(result.loss),
            "X-Compute-Seconds": f"{result.seconds:.6f}",
            "X-Codec": self._feedback.wire_name,
            "X-First-Batch": str(assignment.first_batch),
            "X-Worker-Version": str(assignment.version),
        }
        path = f"/v1/updates/{assignment.version}/{assignment.shard}"
        body = self._feedback.pack(result.update)
        response = Upload(self.session, path, body, headers).run()
        version, is_counted = assignment.version, False
        if response.status == 200:
            answer = response.decode(UpdateAnswer)
            version, is_counted = answer.version, answer.counted
        elif response.status == 409:
            version = response.decode(ErrorAnswer).version or version
        elif response.status == 422:
            self._refusals.add(version, response.message())
        if is_counted:
            self._refusals.reset()
            self._feedback.counted()
            self.totals.add_counted(result.num_samples, result.loss)
        else:
            self.totals.dropped += 1
        self.totals.advance(assignment.version, version)
        self._observer.stepped(self.progress())
        self._download_ahead(version)

    def _download_ahead(self, version: int) -> None:
        """Download a new version while the next assignment is requested."""
        held = self._held.version if self._held is not None else -1
        rounds = self._run.rounds if self._run else 0
        if held < version < rounds:
            download = self._download_of(version)
            self._ahead = BackgroundCall.start(download.try_once, f"weights {version}")

    def _download_of(self, version: int) -> Download:
        """Return the download of ``version``, with what has arrived already."""
        if self._download is None or self._download.version != version:
            self._download = Download(
                self.session, self._prepared.manifest, self._weights_codec, version
            )
        return self._download

    def _is_bulk(self) -> bool:
        return self._run is not None and self._run.is_bulk
