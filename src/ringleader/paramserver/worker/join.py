"""Joins a run: prepares the worker's task, presents it to the server, gets a token."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from ringleader.errors import ConfigError, PeerRefused
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol.join_link import JOIN_SCHEME
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.protocol.messages import (
    ErrorAnswer,
    JoinAnswer,
    JoinRequest,
    Status,
    encode_message,
)
from ringleader.paramserver.tasks.loading import BUILT_IN, load_task
from ringleader.paramserver.tasks.samples import Samples
from ringleader.paramserver.tasks.task import Task
from ringleader.paramserver.worker.agreement import check_join, check_rejoin
from ringleader.paramserver.worker.data_files import MAX_DATA_BYTES, DataDownload
from ringleader.paramserver.worker.http_errors import SERVER
from ringleader.paramserver.worker.observer import Observer
from ringleader.paramserver.worker.pin_pairing import PIN_ENTRIES
from ringleader.paramserver.worker.session import JSON, Request, Response, Session

_MAX_DIFFERENCES = 8
"""Differences of tasks that are shown."""
_REJOIN_EVERY_S = 5.0
"""Least time between two joins, so that a server cannot keep a worker busy by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of a worker, chosen when it is started."""

    name: str
    """Name on the server's status page."""
    task: str = ""
    """Task as ``load_task`` takes it; empty: the built-in task of the server."""
    device: str = "auto"
    codec: str = ""
    """Codec of updates; empty: the server's choice."""
    weights_codec: str = ""
    """Codec of weights; empty: the server's choice."""
    pin: Secret[str] | None = None
    ask_pin: Callable[[], Secret[str]] | None = None
    """Asks the user for a PIN; None if nobody can be asked."""
    max_batch_size: int = 0
    """Largest batch to agree to; 0: a multiple of the task's batch size."""
    max_data_bytes: int = MAX_DATA_BYTES
    """Largest data to get from the server."""
    most_seconds: float = 0.0
    """Time after which it leaves; 0: when training is over."""
    most_updates: int = 0
    """Number of updates after which it leaves; 0: when training is over."""


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """A task with everything that is needed to join with it."""

    task: Task
    samples: Samples
    manifest: Manifest
    fingerprint: dict[str, str]
    pin: Secret[str] | None
    """The PIN of the settings, or the one that the user typed."""


def prepare_task(
    settings: WorkerSettings, session: Session, observer: Observer
) -> PreparedTask:
    """Load the task of the settings, or if they have none, the one of the server.

    The files of a built-in task come from the server, too.
    """
    spec, pin = settings.task, settings.pin
    if not spec:
        spec, pin = _task_of_server(settings, session, observer)
    task = load_task(spec)
    samples = task.samples("train")
    manifest = Manifest.of(task.model())
    return PreparedTask(task, samples, manifest, task.fingerprint(samples), pin)


class Joiner:
    """Joins, and joins again if the server has forgotten the worker. One thread."""

    def __init__(
        self,
        settings: WorkerSettings,
        session: Session,
        prepared: PreparedTask,
        *,
        device: str,
        observer: Observer,
        adopt: Callable[[JoinAnswer], None],
    ) -> None:
        self._settings = settings
        self._session = session
        self._prepared = prepared
        self._device = device
        self._observer = observer
        self._adopt = adopt
        self._pin = prepared.pin
        self._nonce = secrets.token_hex(16)
        self._agreed: JoinAnswer | None = None
        self._joined_s = 0.0

    def join(self) -> None:
        """Join and pass the settings of the run to ``adopt``; raise if refused."""
        answer = self._accepted(self._request_admission())
        self._session.token = Secret(answer.token)
        self._joined_s = time.monotonic()
        self._adopt(answer)
        self._observer.joined(answer, self._device)

    def take_over(self, answer: JoinAnswer) -> None:
        """Go on as the worker that another process of this cluster joined as."""
        self._agreed = self._agreed or answer
        self._session.token = Secret(answer.token)
        self._joined_s = time.monotonic()
        self._adopt(answer)
        self._observer.joined(answer, self._device)

    def rejoin(self) -> None:
        """Join again, because the server no longer knows the token."""
        self._observer.noted("the server no longer knows this worker: joining again")
        time.sleep(max(0.0, self._joined_s + _REJOIN_EVERY_S - time.monotonic()))
        self.join()

    def _request_admission(self) -> Response:
        """Send the request to join; ask the user for other PINs while it is refused."""
        response = self._send()
        has_code = self._session.address.link.code is not None
        ask_pin = None if has_code else self._settings.ask_pin
        for entry in range(PIN_ENTRIES):
            if response.status != 401 or ask_pin is None:
                break
            if entry or self._pin is not None:
                self._observer.noted(response.message())
            self._pin = ask_pin()
            response = self._send()
        return response

    def _send(self) -> Response:
        self._session.token = None
        # The request is built for each try: pairing may complete the link in between.
        return self._session.retry(lambda: self._session.send_once(self._request()))

    def _request(self) -> Request:
        link = self._session.address.link
        pin = self._pin if link.code is None else None
        join = JoinRequest(
            task=self._prepared.fingerprint,
            code=link.code.reveal() if link.code else None,
            pin=pin.reveal() if pin else None,
            name=self._settings.name,
            device=self._device,
            nonce=self._nonce,
            receipt=link.receipt.reveal() if link.receipt else None,
        )
        return Request("POST", "/v1/join", JSON, encode_message(join))

    def _accepted(self, response: Response) -> JoinAnswer:
        if response.status == 412:
            raise ConfigError(_describe_differences(response.decode(ErrorAnswer)))
        if response.status != 200:
            raise PeerRefused(SERVER, response.message())
        answer = response.decode(JoinAnswer)
        if answer.manifest != self._prepared.manifest.digest:
            text = "the server's model has other tensors than this worker's"
            raise ConfigError(f"{text}; use the same task file on both sides")
        if self._agreed is None:
            size = self._prepared.task.batch_size
            check_join(answer, size, self._settings.max_batch_size)
            self._agreed = answer
        check_rejoin(self._agreed, answer)
        return answer


def _task_of_server(
    settings: WorkerSettings, session: Session, observer: Observer
) -> tuple[str, Secret[str] | None]:
    """Return the task with its data, and the PIN."""
    # The request is built for each try: pairing may complete the link in between.
    response = session.retry(lambda: session.send_once(_status_request(session)))
    name = response.decode(Status).task
    if name == "digits":
        return name, settings.pin
    if name in BUILT_IN:
        download = DataDownload(session, observer, settings.pin, settings.ask_pin)
        path = download.run(settings.max_data_bytes)
        return f"{name}:{path}", download.pin
    mine = f"your copy of its file, as in --task {name}.py"
    raise ConfigError(f"the server trains {name!r}: pass --task with {mine}")


def _status_request(session: Session) -> Request:
    """Build the request for the status, which the code keeps from being limited."""
    code = session.address.link.code
    headers = {"Authorization": f"{JOIN_SCHEME} {code.reveal()}"} if code else {}
    return Request("GET", "/v1/status", headers)


def _describe_differences(refusal: ErrorAnswer) -> str:
    rows = (refusal.differences or ())[:_MAX_DIFFERENCES]
    text = "; ".join(
        f"{row.part}: the server has {row.server or 'nothing'!r}, "
        f"this worker {row.worker or 'nothing'!r}"
        for row in rows
    )
    return f"this worker and the server do not train the same task. {text}"
