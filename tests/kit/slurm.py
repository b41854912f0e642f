"""A Slurm of one node, with daemons and keys of its own in a folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ringleader.transport.free_ports import free_ports
from tests.kit.mpi_jobs import ROOT, clean_environment
from tests.kit.slurm_jobs import job_with_a_free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
START_S = 300.0

CONFIG = """
ClusterName=ringleader
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
FirstJobId={job}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""


def can_run_slurm() -> tuple[bool, str]:
    """Whether this machine can run a Slurm, and why not."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        text = f"needs {', '.join(missing)}: apt-get install slurm-wlm munge"
        return False, text
    return os.geteuid() == 0, "Slurm's daemons need root"


class Slurm:
    """Starts the daemons in foreground, so that they end with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        config = folder / "slurm.conf"
        self._env = {**clean_environment(), "SLURM_CONF": str(config)}
        host = socket.gethostname()
        ports, job = free_ports(2), job_with_a_free_port()
        config.write_text(CONFIG.format(folder=folder, host=host, ports=ports, job=job))

    def __enter__(self) -> Self:
        folder = self._folder
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        for name in ("state", "spool"):
            (folder / name).mkdir(mode=0o755)
        files = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        names = ("munge.key", "munge.sock", "munge.pid", "munge.log", "munge.seed")
        options = [f"--{f}={folder / n}" for f, n in zip(files, names, strict=True)]
        try:
            self._start("munged", "--foreground", "--force", *options)
            self._wait_for(lambda: (folder / "munge.sock").exists())
            self._start("slurmctld", "-D", "-c")
            self._start("slurmd", "-D")
            self._wait_for(self._is_idle)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, tasks: int, *argv: str, within_s: float) -> str:
        """Run ``python ARGV...`` in ``tasks`` tasks of srun; return what they said."""
        done = subprocess.run(
            ["srun", "-n", str(tasks), sys.executable, *argv],
            env=self._env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=within_s,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, script: Path, *options: str, within_s: float) -> str:
        """Submit a batch script, wait for its end and return what it said."""
        output = self._folder / "output"
        path = f"{Path(sys.executable).parent}:{self._env['PATH']}"
        done = subprocess.run(
            ["sbatch", "--wait", f"--output={output}", *options, str(script)],
            env={**self._env, "PATH": path},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=within_s,
        )
        said = output.read_text() if output.exists() else ""
        assert done.returncode == 0, said + done.stderr
        return said

    def close(self) -> None:
        """End the daemons that this object started, the last one first."""
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(60.0)
            daemon.kill()
            daemon.wait(60.0)

    def _start(self, *argv: str) -> None:
        log = self._folder / f"{argv[0]}.out"
        with log.open("wb") as file:
            self._daemons.append(
                subprocess.Popen(argv, env=self._env, stdout=file, stderr=file)
            )

    def _is_idle(self) -> bool:
        argv = ["sinfo", "--noheader", "--format=%t"]
        done = subprocess.run(argv, env=self._env, capture_output=True, timeout=120.0)
        return done.stdout.strip() == b"idle"

    def _wait_for(self, is_ready: Callable[[], bool]) -> None:
        until_s = time.monotonic() + START_S
        while not is_ready():
            if time.monotonic() > until_s:
                logs = [path.read_text()[-1000:] for path in self._folder.glob("*.out")]
                raise AssertionError(f"Slurm has not started: {logs}")
            time.sleep(0.1)
