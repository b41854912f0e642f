"""Ctrl-C makes a worker leave the run and end soon, whatever it is doing."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ringleader.paramserver.server.http.http_server import HttpServer, ListenAddress
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.run import Run, ServerOptions, open_run
from ringleader.paramserver.tasks.loading import load_task
from tests.kit.warm_python import WarmPython

TASK = """
import threading
import time
from pathlib import Path

import torch
from torch import nn

def model():
    return nn.Linear(4, 2)

class Slow:  # what is read beside the main thread takes two seconds, inside torch
    is_slow = Path(__file__).with_name("reading").exists()

    def __len__(self):
        return 64

    def __getitem__(self, number):
        if self.is_slow and threading.current_thread() is not threading.main_thread():
            Slow.is_slow = False
            until_s = time.monotonic() + 2
            while time.monotonic() < until_s:
                torch.ones(1000)[torch.arange(1000)]
        return torch.ones(4), torch.tensor(0)

def dataset(split):
    return Slow()

def loss(model, batch):
    if (mark := Path(__file__).with_name("computing")).exists():
        mark.unlink()
        time.sleep(3600)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


class Holding(ThreadingHTTPServer):
    """A proxy that holds back requests whose path contains ``what``."""

    daemon_threads = True

    def __init__(self, port: int, what: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = port
        self.what = what
        self.is_held = threading.Event()
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing about workers that disconnected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Holding

    def _pass_on(self) -> None:
        if self.server.what in self.path:
            self.server.is_held.set()
            self.server.is_over.wait(3600)
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        behind = http.client.HTTPConnection(
            "127.0.0.1", self.server.behind, timeout=120
        )
        behind.request(self.command, self.path, body, dict(self.headers))
        answer = behind.getresponse()
        data = answer.read()
        behind.close()
        self.send_response_only(answer.status)
        for name in ("ETag", "X-Version", "Content-Type"):
            if (value := answer.getheader(name)) is not None:
                self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = _pass_on  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


@contextmanager
def held(run: Run, what: str) -> Iterator[Holding]:
    """Serve a run behind a proxy, each in a thread."""
    listener = ListenAddress(host="127.0.0.1", port=0).listen()
    serving = HttpServer(run.app, listener, None)
    proxy = Holding(listener.getsockname()[1], what)
    threads = [threading.Thread(target=serving.run, name="server")]
    threads.append(threading.Thread(target=proxy.serve_forever, name="proxy"))
    for thread in threads:
        thread.start()
    try:
        yield proxy
    finally:
        proxy.is_over.set()
        proxy.shutdown()
        proxy.server_close()
        serving.stop()
        for thread in threads:
            thread.join(120)
        run.close()


def interrupted(
    warm_python: WarmPython, words: list[str], is_ready: Callable[[], bool]
) -> tuple[int | None, str]:
    """Send Ctrl-C to a worker when it is ready; return its status and output."""
    code = "import typer; from ringleader.cli.work import work; typer.run(work)"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = warm_python.popen("-c", code, *words, "--threads", "1", env=env)
    try:
        expires_s = time.monotonic() + 300
        while not is_ready():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < expires_s
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, said


@pytest.mark.slow
@pytest.mark.parametrize(
    "phase", ["status", "join", "work", "weights", "reading", "computing", "updates"]
)
def test_an_interrupted_worker_leaves_and_says_so(
    tmp_path: Path, warm_python: WarmPython, phase: str
) -> None:
    file = tmp_path / "task.py"
    file.write_text(TASK)
    if phase in ("computing", "reading"):
        (tmp_path / phase).touch()
    name = "digits" if phase == "status" else str(file)  # only then it must be asked
    words = [] if phase == "status" else ["--task", name]
    plan = Plan(rounds=9, workers=1)
    run = open_run(
        load_task(name), plan, ServerOptions(out=tmp_path / "out", is_open=True)
    )
    what = "weights" if phase == "reading" else phase
    with held(run, f"/v1/{what}") as proxy:
        mark = tmp_path / "computing"

        def is_ready() -> bool:
            if phase == "computing":
                return not mark.exists()
            return proxy.is_held.is_set()

        code, said = interrupted(warm_python, [proxy.url, *words], is_ready)
        workers = list(run.app.training.scheduler.workers.values())
    assert code == 130, said
    assert "Traceback" not in said
    if phase in ("status", "join"):
        assert "Stopped before the server admitted this worker." in said
        assert workers == []
    else:
        assert "Left at version 0 of 9" in said
        assert [worker.has_left for worker in workers] == [True]
