"""Jobs on the dashboard of a resident agent: list, log, stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ringleader.ids import NodeId
from ringleader.jobs.machine.job_folder import JobFolder, jobs_directory
from ringleader.jobs.protocol.job_record import JobRecord, JobState
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.monitoring.messages import OpenDashboard
from ringleader.monitoring.open_dashboard import open_dashboard
from tests.kit.dashboard_client import DashboardClient
from tests.kit.resident_machine import resident_machine

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")

PATIENCE_S = 120.0
JOB = "train-1a2b3c"


def wait_for_job(
    client: DashboardClient, is_wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        jobs = client.ask("GET", "/state")[1]["jobs"]
        if JOB in jobs and is_wanted(jobs[JOB]):
            found: dict[str, Any] = jobs[JOB]
            return found
        assert time.monotonic() < until_s, jobs
        time.sleep(0.2)


def test_a_job_is_listed_read_and_stopped(tmp_path: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    try:
        with resident_machine(tmp_path) as home:
            client = DashboardClient(open_dashboard(home, OpenDashboard()).url)
            client.open()
            _follow(client, home, supervisor)
    finally:
        supervisor.kill()
        supervisor.wait(PATIENCE_S)
        assert supervisor.stdin is not None
        supervisor.stdin.close()


def _follow(
    client: DashboardClient, home: Path, supervisor: subprocess.Popen[bytes]
) -> None:
    (node,) = client.ask("GET", "/state")[1]["machines"]
    folder = JobFolder(jobs_directory(home) / JOB)
    folder.make()
    record = JobRecord(
        spec=JobSpec(
            id=JOB, script="train.py", machines=[JobMachine(NodeId(node), "desk")]
        ),
        machine="desk",
        state=JobState.RUNNING,
        created_s=time.time(),
        pid=supervisor.pid,
    )
    lock = folder.lock()  # as the supervisor does
    assert lock is not None
    try:
        (folder.logs / "rank-0.log").write_bytes(b"step 7\n")
        folder.write(record)
        job = wait_for_job(client, lambda row: row["state"] == "running")
        assert job["name"] == f"train.py ({JOB})"
        assert job["about"] == "on desk"
        assert client.ask("GET", f"/log?job={JOB}&rank=0")[1]["text"] == "step 7\n"
        assert "nothing" in client.ask("GET", f"/log?job={JOB}&rank=1")[1]["text"]
        assert client.ask("GET", "/log?job=../x&rank=0")[0] == 404
        text = f"job {JOB} stops on all machines"
        assert client.ask("POST", "/stop", {"job": JOB}) == (200, {"text": text})
        assert supervisor.wait(PATIENCE_S) == -signal.SIGTERM
    finally:
        lock.close()
    folder.write(msgspec.structs.replace(record, state=JobState.STOPPED))
    job = wait_for_job(client, lambda row: row["state"] == "stopped")
    assert not job["can_stop"]
