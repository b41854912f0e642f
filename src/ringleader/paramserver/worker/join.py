"""How a worker gets in: its task, what it has in common with the server, its token."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from ringleader.errors import ConfigError, PeerRefused, ProtocolError
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.tasks.loading import load_task
from ringleader.paramserver.tasks.samples import Samples
from ringleader.paramserver.tasks.task import Task
from ringleader.paramserver.worker import server_messages
from ringleader.paramserver.worker.observer import Observer
from ringleader.paramserver.worker.pin_pairing import PIN_ENTRIES
from ringleader.paramserver.worker.server_messages import Json, Terms
from ringleader.paramserver.worker.session import SERVER, Request, Response, Session

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What the owner of a worker decides."""

    name: str
    """For people, on the server's status page."""
    task: str = ""
    """As ``task.load`` takes it; empty: the built-in one that the server trains."""
    device: str = "auto"
    codec: str = ""
    """How updates are written; empty: as the server prefers."""
    weights_codec: str = ""
    """How weights are written; empty: as the server prefers."""
    pin: Secret[str] | None = None
    ask_pin: Callable[[], Secret[str]] | None = None
    """How to ask the user; None: nobody is there."""


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """What a worker needs before it joins."""

    task: Task
    samples: Samples
    manifest: Manifest
    fingerprint: dict[str, str]


def prepare(spec: str, session: Session) -> PreparedTask:
    """Load the task; without a ``spec``, the one that the server says it trains."""
    task = load_task(spec or _task_of_server(session))
    samples = task.samples("train")
    manifest = Manifest.of(task.model())
    return PreparedTask(task, samples, manifest, task.fingerprint(samples))


class Joiner:
    """Joins, and joins again when the server has forgotten us. One thread."""

    def __init__(
        self,
        settings: WorkerSettings,
        session: Session,
        prepared: PreparedTask,
        *,
        device: str,
        observer: Observer,
        adopt: Callable[[Terms], None],
    ) -> None:
        self._settings = settings
        self._session = session
        self._prepared = prepared
        self._device = device
        self._observer = observer
        self._adopt = adopt
        self._pin = settings.pin
        self._nonce = secrets.token_hex(16)

    def join(self) -> None:
        """Be let in, or raise why not."""
        terms = self._accepted(self._request_admission())
        self._session.token = Secret(terms.token)
        self._adopt(terms)
        self._observer.joined(terms, self._device)

    def rejoin(self) -> None:
        """The server does not know us any more: it was started anew."""
        self._observer.noted("the server does not know this worker any more: joining")
        self.join()

    def _request_admission(self) -> Response:
        """Ask to be let in, with other PINs while the user types some."""
        answer = self._ask()
        may_ask = self._settings.ask_pin if self._code() is None else None
        for entry in range(PIN_ENTRIES):
            if answer.status != 401 or may_ask is None:
                break
            if entry or self._pin is not None:
                self._observer.noted(answer.message())
            self._pin = may_ask()
            answer = self._ask()
        return answer

    def _ask(self) -> Response:
        self._session.token = None
        # Made anew for each try: a PIN may turn the address into a link in between.
        return self._session.retry(lambda: self._session.send_once(self._request()))

    def _request(self) -> Request:
        body: dict[str, object] = {
            "name": self._settings.name,
            "device": self._device,
            "nonce": self._nonce,
            "task": self._prepared.fingerprint,
        }
        link = self._session.address.link
        if link.code is not None:
            body["code"] = link.code.reveal()
        elif self._pin is not None:
            body["pin"] = self._pin.reveal()
        if link.receipt is not None:
            body["receipt"] = link.receipt.reveal()
        return Request("POST", "/v1/join", JSON, json.dumps(body).encode())

    def _code(self) -> Secret[str] | None:
        return self._session.address.link.code

    def _accepted(self, answer: Response) -> Terms:
        if answer.status == 412:
            raise ConfigError(_differences(answer.json()))
        if answer.status != 200:
            raise PeerRefused(SERVER, answer.message())
        terms = server_messages.terms_of(answer.json())
        if terms.manifest != self._prepared.manifest.digest:
            text = "the server's model has other tensors than this worker's"
            raise ConfigError(f"{text}; use the same task file on both sides")
        return terms


def _task_of_server(session: Session) -> str:
    status = session.send(Request("GET", "/v1/status"))
    name = server_messages.text_of(status.json(), "task")
    if name == "digits":
        return name
    how = {"chars": "chars:TEXTFILE", "images": "images:DIRECTORY"}
    mine = how.get(name, f"your copy of its file, as in --task {name}.py")
    raise ConfigError(f"the server trains {name!r}: pass --task with {mine}")


def _differences(answer: Json) -> str:
    """What is not the same on both sides, part by part."""
    rows = answer.get("differences")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProtocolError(SERVER, "'differences' is not a list of differences")
    parts = [
        f"{_text(row, 'part')}: the server has {_text(row, 'server')!r}, "
        f"this worker {_text(row, 'worker')!r}"
        for row in rows[:8]
    ]
    text = "; ".join(parts)
    return f"this worker and the server do not train the same thing. {text}"


def _text(row: Json, name: str) -> str:
    return "nothing" if row.get(name) is None else server_messages.text_of(row, name)
