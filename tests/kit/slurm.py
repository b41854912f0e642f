"""A Slurm with daemons and keys of its own in a folder: on this host, or on a LAN's."""

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

from ringleader.simulation.lan import VirtualLan
from ringleader.simulation.lan.ip_command import set_hosts
from ringleader.transport.free_ports import free_ports
from tests.kit.mpi_jobs import ROOT, clean_environment
from tests.kit.slurm_jobs import job_with_a_free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
START_S = 300.0

CONFIG = """
ClusterName=ringleader
SlurmctldHost={controller}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
FirstJobId={job}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""
NODE = "NodeName={0} NodeAddr={1} CPUs=8 RealMemory=1000 State=UNKNOWN"
AS_NODE = 'mount --bind "$1" /etc/hosts; hostname "$0"; shift; exec "$@"'
"""Runs a command under the name of its node: Slurm asks the system for it. Not by ``ip
netns exec``, which mounts a /sys without the control groups that slurmd looks for."""


def can_run_slurm() -> tuple[bool, str]:
    """Whether this machine can run a Slurm, and why not."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        text = f"needs {', '.join(missing)}: apt-get install slurm-wlm munge"
        return False, text
    return os.geteuid() == 0, "Slurm's daemons need root"


class Slurm:
    """Starts the daemons in foreground, so that they end with the test."""

    def __init__(self, folder: Path, net: VirtualLan | None = None) -> None:
        """Use every host of ``net`` as a node; the first has the controller, too."""
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._hosts = [] if net is None else net.hosts
        self._nodes = {socket.gethostname(): "127.0.0.1"}
        if net is not None:
            self._nodes = {f"node{h.number + 1}": h.address for h in net.hosts}
            for host in net.hosts:
                set_hosts(host.name, [f"{a} {n}" for n, a in self._nodes.items()])
        config = folder / "slurm.conf"
        self._env = {**clean_environment(), "SLURM_CONF": str(config)}
        name, address = next(iter(self._nodes.items()))
        config.write_text(
            CONFIG.format(
                folder=folder,
                controller=f"{name}({address})",
                nodes="\n".join(NODE.format(*node) for node in self._nodes.items()),
                ports=free_ports(2),
                job=job_with_a_free_port(),
            )
        )

    def __enter__(self) -> Self:
        folder = self._folder
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        for name in ("state", *(f"spool.{node}" for node in self._nodes)):
            (folder / name).mkdir(mode=0o755)
        files = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        names = ("munge.key", "munge.sock", "munge.pid", "munge.log", "munge.seed")
        options = [f"--{f}={folder / n}" for f, n in zip(files, names, strict=True)]
        try:
            self._start("munged", "--foreground", "--force", *options)
            self._wait_for(lambda: (folder / "munge.sock").exists())
            self._start("slurmctld", "-D", "-c")
            for number, _ in enumerate(self._nodes):
                self._start("slurmd", "-D", on=number)
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
            self._at(0, "srun", "-n", str(tasks), sys.executable, *argv),
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
            self._at(
                0, "sbatch", "--wait", f"--output={output}", *options, str(script)
            ),
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

    def _at(self, number: int, *argv: str) -> list[str]:
        """Return the command that runs ``argv`` on a node."""
        if not self._hosts:
            return list(argv)
        name = self._hosts[number].name
        enter = ["nsenter", f"--net=/run/netns/{name}", "unshare", "--mount", "--uts"]
        hosts = f"/etc/netns/{name}/hosts"
        return [*enter, "sh", "-c", AS_NODE, f"node{number + 1}", hosts, *argv]

    def _start(self, *argv: str, on: int = 0) -> None:
        log = self._folder / f"{argv[0]}{on}.out"
        command = self._at(on, *argv)
        with log.open("wb") as file:
            self._daemons.append(
                subprocess.Popen(command, env=self._env, stdout=file, stderr=file)
            )

    def _is_idle(self) -> bool:
        argv = self._at(0, "sinfo", "--noheader", "--format=%t %D")
        done = subprocess.run(argv, env=self._env, capture_output=True, timeout=120.0)
        return done.stdout.decode().split() == ["idle", str(len(self._nodes))]

    def _wait_for(self, is_ready: Callable[[], bool]) -> None:
        until_s = time.monotonic() + START_S
        while not is_ready():
            if time.monotonic() > until_s:
                logs = [path.read_text()[-1000:] for path in self._folder.glob("*.out")]
                raise AssertionError(f"Slurm has not started: {logs}")
            time.sleep(0.1)
