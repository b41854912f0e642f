"""Workers get the files of a task from the server: verified, once, and only they."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import httpx2
import numpy as np
import pytest

from ringleader.data.listing import CHUNK_BYTES
from ringleader.errors import ConfigError, PeerRefused, ProtocolError
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol import join_link
from ringleader.paramserver.tasks.task import DataFiles
from ringleader.paramserver.worker.data_files import DataDownload
from ringleader.paramserver.worker.observer import Observer
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.session import Request, Response, Session
from tests.kit.param_server import Server, server, task

PIN = "2468"
SIZE = 2 * CHUNK_BYTES + 999


class Notes:
    """Observer that keeps notices."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def noted(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Files on the server's side; the worker's cache is elsewhere."""
    monkeypatch.setenv("RINGLEADER_CACHE", str(tmp_path / "cache"))
    content = {"big": np.random.default_rng(0).bytes(SIZE), "sub/small": b"x"}
    for name, data in content.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return content


@pytest.fixture
def served(tmp_path: Path, files: dict[str, bytes]) -> Iterator[Server]:
    what = replace(task(), data=DataFiles(tmp_path / "data"))
    with server(tmp_path / "out", what=what, pin=PIN) as made:
        yield made


@contextmanager
def downloading(
    served: Server,
    *,
    with_code: bool = True,
    pin: str | None = None,
    ask: Callable[[], Secret[str]] | None = None,
) -> Iterator[tuple[DataDownload, list[str], Notes]]:
    """A download with the join link or without it, and the paths that it requests."""
    secret = served.run.key.secret.reveal()
    link = join_link.build(served.url, secret, None).reveal()
    address = ServerAddress.from_links([link if with_code else served.url])
    notes, asked = Notes(), list[str]()
    session = Session.open(address, cast("Observer", notes))
    send_once = session.send_once

    def recorded(request: Request, into: object = None) -> Response:
        asked.append(request.path)
        return send_once(request, into)  # type: ignore[arg-type]

    session.send_once = recorded  # type: ignore[method-assign]
    secret_pin = Secret(pin) if pin else None
    try:
        yield (
            DataDownload(session, cast("Observer", notes), secret_pin, ask),
            asked,
            notes,
        )
    finally:
        session.close()


def test_a_worker_gets_the_same_bytes_and_asks_for_nothing_twice(
    served: Server, files: dict[str, bytes]
) -> None:
    with downloading(served) as (download, asked, notes):
        found = download.run(1 << 30)
        assert {n: (found / n).read_bytes() for n in files} == files
        assert len(asked) == 1 + 4
        assert notes.texts == [f"getting {SIZE + 1:,} bytes of data from the server"]
    with open(found / "big", "r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(b"flipped")
    with downloading(served) as (download, asked, _):
        assert download.run(1 << 30) == found
        assert asked == ["/v1/data", "/v1/data/1"]
        assert (found / "big").read_bytes() == files["big"]
        with pytest.raises(ConfigError, match=r"allow it with --max-data 0\.1"):
            download.run(100)


def test_only_who_may_join_gets_the_data(served: Server, tmp_path: Path) -> None:
    with (
        downloading(served, with_code=False) as (stranger, _, _),
        pytest.raises(PeerRefused, match="does not know that code or PIN"),
    ):
        stranger.run(1 << 30)
    with downloading(served, with_code=False, pin=PIN) as (friend, _, _):
        assert (friend.run(1 << 30) / "sub" / "small").read_bytes() == b"x"
    with downloading(served, with_code=False, ask=lambda: Secret(PIN)) as (typed, _, _):
        typed.run(1 << 30)
        assert typed.pin == Secret(PIN)
    with httpx2.Client(base_url=served.url, trust_env=False) as client:
        for headers, status in (
            ({}, 401),
            ({"X-Auth-Pin": "1357"}, 401),
            ({"Authorization": "Join AAAA"}, 401),
            ({"X-Auth-Pin": PIN}, 200),
        ):
            assert client.get("/v1/data", headers=headers).status_code == status
            assert client.get("/v1/data/0", headers=headers).status_code == status
        pin = {"X-Auth-Pin": PIN}
        for path in ("4", "-1", "../../etc/passwd", "x", "9" * 30):
            answer = client.get(f"/v1/data/{path}", headers=pin)
            assert answer.status_code in (400, 404), path


def test_files_that_change_on_the_server_are_told(
    served: Server, tmp_path: Path, files: dict[str, bytes]
) -> None:
    (tmp_path / "data" / "big").write_bytes(bytes(SIZE))
    with (
        downloading(served) as (download, _, _),
        pytest.raises(ProtocolError, match="other bytes of big than it announced"),
    ):
        download.run(1 << 30)
    (tmp_path / "data" / "big").unlink()
    with (
        downloading(served) as (download, _, _),
        pytest.raises(PeerRefused, match="big has changed on the server"),
    ):
        download.run(1 << 30)


@pytest.mark.parametrize("has_data", [False, True])
def test_a_task_without_files_has_none_to_send(tmp_path: Path, has_data: bool) -> None:
    """Nor has one whose folder cannot be sent, as with a link in it: it is trained."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path)
    data = DataFiles(tmp_path / "data") if has_data else None
    with (
        server(tmp_path / "out", what=replace(task(), data=data)) as made,
        downloading(made) as (download, _, _),
        pytest.raises(PeerRefused, match="no files to send; pass --task"),
    ):
        download.run(1 << 30)
