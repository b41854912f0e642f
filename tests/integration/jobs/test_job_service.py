"""The jobs service of resident agents: what it does, and what it refuses to whom."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from ringleader.errors import PeerRefused, RingleaderError
from ringleader.ids import NodeId
from ringleader.jobs.client.channel import Channel, ResidentAgent, find_agent
from ringleader.jobs.client.fetch_results import fetch_results
from ringleader.jobs.client.follow_job import JobFollower
from ringleader.jobs.client.job_requests import find_job, list_jobs, stop_everywhere
from ringleader.jobs.client.job_summary import JobSummary
from ringleader.jobs.client.machine_choice import all_machines
from ringleader.jobs.client.output_view import PlainView
from ringleader.jobs.client.start_job import JobStart, Project
from ringleader.jobs.machine.job_folder import JobFolder, find_jobs, jobs_directory
from ringleader.jobs.machine.project_transfer import project_store
from ringleader.jobs.machine.prune_jobs import prune_jobs
from ringleader.jobs.protocol.job_record import JobRecord, JobState
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.jobs.protocol.messages import (
    EVERYTHING,
    Changed,
    Chunk,
    ChunksNeeded,
    Fetch,
    Follow,
    JobReply,
    JobRequest,
    ListJobs,
    Output,
    Prepare,
    Prepared,
    Prune,
    Pruned,
    Start,
    Stop,
)
from ringleader.node.launch.resident_agent import (
    connect_to_resident,
    find_resident,
    set_jobs_permission,
    start_resident,
    stop_resident,
)
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.project import BlobStore, collect, keep
from ringleader.project.manifest import Manifest, ProjectFile, encode
from ringleader.testing.node_process import make_home
from tests.kit.machines import RINGLEADER

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")

LIMIT_S = 120.0
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
REFUSED = "runs no jobs of other machines"
T = TypeVar("T")


@dataclass(slots=True)
class Pair:
    """Two machines of one cluster; only the first one accepts jobs."""

    homes: list[Path]

    def agent(self, index: int) -> ResidentAgent:
        found = find_agent(self.homes[index])
        assert found is not None
        return found

    def machine(self, index: int) -> JobMachine:
        here = self.agent(index).snapshot
        row = next(row for row in here.nodes if row.is_here)
        return JobMachine(row.node, row.name)  # type: ignore[arg-type]

    def folders(self, index: int) -> list[str]:
        directory = jobs_directory(self.homes[index])
        return sorted(os.listdir(directory)) if directory.exists() else []


def run(work: Coroutine[None, None, T]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work

    return asyncio.run(limited())


def wait_until(is_true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < until_s
        time.sleep(0.02)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder, root = tmp_path_factory.mktemp("pair"), os.urandom(32)
    homes = [make_home(folder / name, root) for name in ("open", "shut")]
    pids = []
    try:
        for home in homes:
            config = AgentConfig(
                home=str(home),
                interfaces=[LOOPBACK],
                profile="loopback",
                name=home.name,
                is_resident=True,
                accepts_jobs=home.name == "open",
            )
            pids.append(start_resident(config).pid)
        made = Pair(homes)
        for index in range(2):
            wait_until(lambda: len(all_machines(made.agent(index).snapshot)) == 2)  # noqa: B023
        yield made
    finally:
        for home in homes:
            stop_resident(home)
        for pid in pids:
            os.waitpid(pid, 0)  # they were children of this process


def spec_of(pair: Pair, project: Path, *where: int, **changes: object) -> JobSpec:
    """A job whose launcher prints its help: everything is real but the training."""
    values: dict[str, object] = {
        "id": f"train-{os.urandom(4).hex()}",
        "script": "train.py",
        "options": ["--help"],
        "folder": str(project),
        "is_synced": False,
        "machines": [pair.machine(index) for index in where or (0,)],
    }
    return JobSpec(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "Projekt mit Ümlaut"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')")
    return folder


def start(pair: Pair, spec: JobSpec, by: int = 0) -> None:
    run(JobStart(pair.agent(by).path, spec, None, print).run())


def follow(pair: Pair, spec: JobSpec, by: int = 0) -> tuple[JobSummary, JobFollower]:
    follower = JobFollower(
        path=pair.agent(by).path,
        spec=spec,
        view=PlainView(),
        write=lambda _text: None,
        say=lambda _text: None,
    )
    summary = run(follower.run())
    assert summary is not None
    return summary, follower


def test_a_job_is_started_followed_listed_and_leaves_nothing(
    pair: Pair, project: Path
) -> None:
    """By a machine that itself accepts none, on one that does."""
    spec = spec_of(pair, project)
    start(pair, spec, by=1)
    summary, follower = follow(pair, spec, by=1)
    assert (summary.state, summary.exit_status) == (JobState.SUCCEEDED, 0)
    assert "--backend" in follower.launcher_said("open"), "the help of ringleader run"
    jobs, _ = run(list_jobs(pair.agent(0)))
    assert spec.id in {job.spec.id for job in jobs}
    assert run(find_job(pair.agent(0), spec.id[:9])).spec == spec
    folder = JobFolder(jobs_directory(pair.homes[0]) / spec.id)
    wait_until(lambda: not folder.is_watched())
    assert not folder.socket.exists()
    assert sorted(os.listdir(project)) == ["train.py"]


def test_a_launcher_that_fails_is_told_with_its_words(
    pair: Pair, project: Path
) -> None:
    spec = spec_of(pair, project, options=["--no-such-option"])
    start(pair, spec)
    summary, follower = follow(pair, spec)
    assert (summary.state, summary.exit_status) == (JobState.FAILED, 2)
    assert "--no-such-option" in follower.launcher_said("open")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"script": "missing.py"},
            "there is no script .*missing.py here: with --no-sy",
        ),
        ({"folder": "/no/such/folder"}, "there is no folder /no/such/folder here"),
        ({"folder": "relative"}, "not an absolute path"),
    ],
)
def test_a_machine_that_cannot_prepare_keeps_nothing(
    pair: Pair, project: Path, changes: dict[str, object], text: str
) -> None:
    before = pair.folders(0)
    with pytest.raises(PeerRefused, match=f"(?s)open.*{text}"):
        start(pair, spec_of(pair, project, **changes))
    wait_until(lambda: pair.folders(0) == before)


def test_one_machine_that_refuses_ends_the_job_before_it_runs(
    pair: Pair, project: Path
) -> None:
    before = pair.folders(0)
    with pytest.raises(RingleaderError, match=r"shut.*runs no jobs of other machines"):
        start(pair, spec_of(pair, project, 0, 1))
    wait_until(lambda: pair.folders(0) == before)
    assert pair.folders(1) == []


def test_a_prepared_job_is_gone_with_its_connection(pair: Pair, project: Path) -> None:
    spec, before = spec_of(pair, project), pair.folders(0)

    async def prepare_and_leave() -> None:
        channel = await Channel.open(pair.agent(0).path, spec.machines[0])
        try:
            reply = await channel.ask(Prepare(spec=spec), LIMIT_S)
            assert isinstance(reply, Prepared)
            assert spec.id in pair.folders(0)
            states = {r.spec.id: r.state for r in find_jobs(_jobs_of(pair))}
            assert states[spec.id] == JobState.PREPARED
            with pytest.raises(PeerRefused, match=r"there is a job .* already"):
                await JobStart(pair.agent(0).path, spec, None, print).run()
            assert spec.id in pair.folders(0), "the first one is untouched"
        finally:
            channel.close()

    run(prepare_and_leave())
    wait_until(lambda: pair.folders(0) == before)


def _jobs_of(pair: Pair) -> Path:
    return jobs_directory(pair.homes[0])


def ask(pair: Pair, by: int, at: int, request: JobRequest) -> JobReply:
    return run(ask_here(pair.agent(by).path, pair.machine(at), request))


def test_a_machine_without_permission_refuses_everything(
    pair: Pair, project: Path
) -> None:
    own = spec_of(pair, project, 1)
    start(pair, own, by=1)  # its own user may
    assert follow(pair, own, by=1)[0].state == JobState.SUCCEEDED
    for request in (
        ListJobs(),
        Follow(job=own.id),
        Stop(own.id),
        Fetch(own.id, "train.py"),
        Prepare(spec=spec_of(pair, project, 1)),
    ):
        with pytest.raises(PeerRefused, match=r"shut.*runs no jobs of other machines"):
            ask(pair, 0, 1, request)


@pytest.mark.parametrize(
    "request_", [Start(), Chunk("0" * 64, b"x"), Stop("no-such"), Follow(job="none")]
)
def test_requests_out_of_order_or_for_no_job_are_refused(
    pair: Pair, request_: JobRequest
) -> None:
    with pytest.raises(PeerRefused, match=r"open.*(began with|there is no job)"):
        ask(pair, 1, 0, request_)


def test_results_come_home_and_nothing_else_does(
    pair: Pair, project: Path, tmp_path: Path
) -> None:
    (project / "out" / "deep").mkdir(parents=True)
    (project / "out" / "deep" / "größe.bin").write_bytes(os.urandom(600_000))
    (project / "out" / "empty").write_bytes(b"")
    (project / "out" / "link").symlink_to("/etc/passwd")
    (project / "away").symlink_to("/etc")
    spec, into = spec_of(pair, project), tmp_path / "home"
    into.mkdir()
    start(pair, spec)
    follow(pair, spec)

    def fetch(name: str) -> list[str]:
        path, machine = pair.agent(1).path, spec.machines[0]
        return run(fetch_results(path, machine, spec.id, name=name, into=into))

    assert fetch("out") == ["out/deep/größe.bin", "out/empty"]
    kept, sent = into / "out/deep/größe.bin", project / "out/deep/größe.bin"
    assert kept.read_bytes() == sent.read_bytes()
    assert (into / "out" / "empty").read_bytes() == b""
    for name in ("..", ".", "/etc/passwd", "../../x", "away/passwd", "out/link", "no"):
        with pytest.raises(PeerRefused, match=r"open.*--fetch"):
            fetch(name)
    assert sorted(os.listdir(into)) == ["out"]


def test_a_killed_supervisor_takes_its_processes_along(
    pair: Pair, project: Path
) -> None:
    """The launcher waits here for a second machine that never comes."""
    spec = spec_of(pair, project, options=["--min-nodes", "2", "--max-nodes", "2"])
    start(pair, spec)
    folder = JobFolder(jobs_directory(pair.homes[0]) / spec.id)
    pid = folder.stored().pid
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    (launcher,) = [int(n) for each in threads for n in each.read_text().split()]
    os.kill(pid, signal.SIGKILL)
    assert follow(pair, spec, by=1)[0].state == JobState.LOST
    wait_until(lambda: not Path(f"/proc/{launcher}").exists())
    assert (
        run(
            stop_everywhere(pair.agent(1).path, spec.machines, spec.id, is_urgent=False)
        )
        == []
    )


@contextlib.contextmanager
def refusing(pair: Pair) -> Iterator[None]:
    """The first machine refuses jobs of others within, as ``up --no-jobs`` does."""
    allow(pair, is_allowed=False)
    try:
        yield
    finally:
        allow(pair, is_allowed=True)


def allow(pair: Pair, *, is_allowed: bool) -> None:
    record = find_resident(pair.homes[0])
    assert record is not None
    agent = connect_to_resident(pair.homes[0], record)
    assert agent is not None
    with agent:
        set_jobs_permission(agent, allowed=is_allowed)


def test_a_prepared_job_does_not_start_after_a_refusal(
    pair: Pair, project: Path
) -> None:
    """The other machine keeps its connection: every message of it is refused."""
    spec, before = spec_of(pair, project, 0), pair.folders(0)

    async def prepare_and_start() -> None:
        channel = await Channel.open(pair.agent(1).path, spec.machines[0])
        try:
            reply = await channel.ask(Prepare(spec=spec), LIMIT_S)
            assert isinstance(reply, Prepared)
            with refusing(pair):
                await channel.send(Start())
                with pytest.raises(PeerRefused, match=REFUSED):
                    await channel.receive(LIMIT_S)
        finally:
            channel.close()

    run(prepare_and_start())
    wait_until(lambda: pair.folders(0) == before)


def test_files_stop_travelling_at_a_refusal(pair: Pair, tmp_path: Path) -> None:
    """Between two pieces of the program, and with the client waiting for an answer."""
    data = [os.urandom(100) for _ in range(2)]
    digests = [hashlib.sha256(each).hexdigest() for each in data]
    files = tuple(ProjectFile(f"f{n}", 100, (d,)) for n, d in enumerate(digests))
    spec = spec_of(pair, tmp_path, 0, script="f0", is_synced=True, folder="")
    before = pair.folders(0)

    store = project_store(pair.homes[0])

    async def send() -> None:
        channel = await Channel.open(pair.agent(1).path, spec.machines[0])
        try:
            manifest = encode(Manifest(files))
            reply = await channel.ask(Prepare(spec=spec, manifest=manifest), LIMIT_S)
            assert isinstance(reply, ChunksNeeded)
            await channel.send(Chunk(digests[0], data[0]))
            await asyncio.to_thread(wait_until, lambda: store.has(digests[0]))
            with refusing(pair):
                await channel.send(Chunk(digests[1], data[1]))
                with pytest.raises(PeerRefused, match=REFUSED):
                    await channel.receive(LIMIT_S)
            assert not store.has(digests[1])
        finally:
            channel.close()

    run(send())
    wait_until(lambda: pair.folders(0) == before)


def test_output_ends_at_a_refusal_and_the_starter_may_stop_its_job(
    pair: Pair, project: Path
) -> None:
    """The launchers wait for a second machine. One job was started by each machine:
    the other one sees only how its own stands, and ends only that."""
    waits = ["--min-nodes", "2", "--max-nodes", "2"]
    own, others = (spec_of(pair, project, 0, options=waits) for _ in range(2))
    start(pair, own, by=0)
    start(pair, others, by=1)

    async def follow_both() -> None:
        channels = [
            await Channel.open(pair.agent(1).path, spec.machines[0])
            for spec in (own, others)
        ]
        try:
            for channel, spec in zip(channels, (own, others), strict=True):
                await channel.send(Follow(job=spec.id))
                while not isinstance(await channel.receive(LIMIT_S), Changed):
                    pass
            with refusing(pair):
                for spec in (own, others):
                    log = JobFolder(_jobs_of(pair) / spec.id).logs / "rank-0.log"
                    log.write_bytes(b"SECRET")
                await check(channels)
        finally:
            for channel in channels:
                channel.close()

    async def check(channels: list[Channel]) -> None:
        path, machine = pair.agent(1).path, own.machines[0]
        with pytest.raises(PeerRefused, match=REFUSED):
            await read_to_the_end(channels[0])
        listed, _ = await list_jobs(pair.agent(1))
        shown = {job.spec.id for job in listed}
        assert others.id in shown
        assert own.id not in shown
        for job in (own, others):
            for request in (Fetch(job.id, "train.py"), Follow(job=own.id)):
                with pytest.raises(PeerRefused, match=REFUSED):
                    await ask_here(path, machine, request)
        with pytest.raises(PeerRefused, match=REFUSED):
            await ask_here(path, machine, Stop(own.id))
        assert await stop_everywhere(path, [machine], others.id, is_urgent=True) == []
        last = await read_to_the_end(channels[1])
        assert last.state == JobState.STOPPED
        assert last.outcome is not None
        assert "takes no jobs of other machines any more" in last.outcome.text

    run(follow_both())
    stop = stop_everywhere(pair.agent(0).path, own.machines, own.id, is_urgent=True)
    assert run(stop) == []
    follow(pair, own)


async def read_to_the_end(channel: Channel) -> JobRecord:
    """Read until a job has ended; none of its output may come."""
    while True:
        reply = await channel.receive(LIMIT_S)
        assert not (isinstance(reply, Output) and b"SECRET" in reply.data)
        if isinstance(reply, Changed) and reply.record.state.is_over:
            return reply.record


async def ask_here(path: Path, machine: JobMachine, request: JobRequest) -> JobReply:
    channel = await Channel.open(path, machine)
    try:
        return await channel.ask(request, LIMIT_S)
    finally:
        channel.close()


@pytest.mark.parametrize(
    ("options", "end"),
    [
        (["--max-restarts", "3"], "sys.exit(3)"),
        pytest.param(["--survive"], "os.kill(os.getpid(), 9)", marks=pytest.mark.slow),
    ],
)
def test_no_worker_starts_again_after_a_refusal(
    pair: Pair, project: Path, options: list[str], end: str
) -> None:
    """It fails and has restarts left, or was killed and would be replaced."""
    (project / "train.py").write_text(
        "import os, pathlib, sys, time\n"
        "with open('starts', 'a') as file: file.write('x')\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.05)\n"
        f"{end}\n"
    )
    spec = spec_of(pair, project, 0, options=options)
    start(pair, spec, by=1)
    starts, folder = project / "starts", JobFolder(_jobs_of(pair) / spec.id)
    wait_until(starts.exists)
    with refusing(pair):
        (project / "go").touch()
        wait_until(lambda: folder.read().state.is_over)
    assert starts.read_text() == "x"
    record = folder.stored()
    assert (record.state, record.exit_status) == (JobState.FAILED, 1)
    assert record.outcome is not None
    assert "takes no jobs of other machines any more" in record.outcome.text


def test_no_jobs_works_from_any_shell_and_names_and_ends_jobs_of_others(
    pair: Pair, project: Path
) -> None:
    """A name, and peers, that the agent was started without."""
    waits = ["--min-nodes", "2", "--max-nodes", "2"]
    own, others = (spec_of(pair, project, 0, options=waits) for _ in range(2))
    start(pair, own, by=0)
    start(pair, others, by=1)

    def both_wait() -> bool:
        """A launcher that asks for its permission later than the refusal ends."""
        here = next(row for row in pair.agent(0).snapshot.nodes if row.is_here)
        return {own.id, others.id} <= {*here.jobs, *here.waiting_jobs}

    wait_until(both_wait)

    def ask_there(*words: str) -> str:
        environment = {
            **os.environ,
            "RINGLEADER_HOME": str(pair.homes[0]),
            "RINGLEADER_NAME": "another-name",
        }
        done = subprocess.run(
            [*RINGLEADER, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def up(*words: str) -> str:
        return ask_there("up", "--wait", "0", "--peers", "10.9.9.9", *words)

    try:
        said = up("--no-jobs")
        assert "Jobs are refused" in said
        assert f"{others.id}  of shut: train.py" in said
        assert own.id not in said
        assert "ringleader up --no-jobs --stop" in said
        assert f"{others.id}  of shut: train.py" in ask_there("status")
        said = up("--no-jobs", "--stop")
        assert f"Ended here: job {others.id}" in said
        assert "still run here" not in said
    finally:
        allow(pair, is_allowed=True)
    states = {each.spec.id: each.state for each in find_jobs(_jobs_of(pair))}
    assert states[others.id] == JobState.STOPPED
    assert states[own.id] == JobState.RUNNING
    stop = stop_everywhere(pair.agent(0).path, own.machines, own.id, is_urgent=True)
    assert run(stop) == []
    follow(pair, own)


def test_an_ended_job_keeps_no_second_copy_of_the_data_and_says_what_it_wrote(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program writes into its data in place, as it may: the store has it as it was,
    and so has the next job. Here this process writes, while the launcher waits."""
    monkeypatch.setattr("ringleader.jobs.client.start_job.PROGRESS_S", 0.0)
    (tmp_path / "project/sub").mkdir(parents=True)
    data = os.urandom(20 << 20)
    for name, content in (("data.bin", data), ("small.bin", data[:5000])):
        (tmp_path / "project" / name).write_bytes(content)
    script = tmp_path / "project/sub/train.py"
    script.write_text("print('hello')")
    waits = ["--min-nodes", "2", "--max-nodes", "2"]
    store = BlobStore(tmp_path / "store")

    def train() -> tuple[JobSpec, JobRecord, list[str]]:
        files, said = collect(script), list[str]()
        keep(files, store)
        spec = spec_of(pair, tmp_path, is_synced=True, folder="sub", options=waits)
        project = Project(manifest=files.manifest, store=store)
        run(JobStart(pair.agent(1).path, spec, project, said.append).run())
        folder = JobFolder(_jobs_of(pair) / spec.id)
        assert (folder.work / "data.bin").read_bytes() == data
        assert (folder.work / "small.bin").read_bytes() == data[:5000]
        with open(folder.work / "small.bin", "r+b") as file:
            file.write(b"changed" if len(said) > 1 else data[:7])
        (folder.work / "sub/out/deep").mkdir(parents=True)
        (folder.work / "sub/out/deep/model.pt").write_bytes(bytes(3000))
        (folder.work / "sub/out/log 12:00.txt").write_text("x")
        if len(said) <= 1:
            (folder.work / "sub/two\nlines").touch()
        machine = spec.machines
        stop = stop_everywhere(pair.agent(1).path, machine, spec.id, is_urgent=True)
        assert run(stop) == []
        assert follow(pair, spec, by=1)[0].state == JobState.STOPPED
        return spec, folder.stored(), said

    subprocess.run(["git", "init", "-q", str(tmp_path / "project")], check=True)
    spec, record, said = train()
    assert said[0] == "sending 21 MB to open"
    assert re.fullmatch(r"1\.05 MB of 21 MB sent to open; about \d+ s .*/s", said[1])
    work = JobFolder(_jobs_of(pair) / spec.id).work
    assert sorted(os.listdir(work)) == ["small.bin", "sub"], "in the store only"
    assert [(w.name, w.num_files, w.num_bytes) for w in record.written] == [
        ("../small.bin", 1, 5000),
        ("out/", 2, 3001),
    ]
    assert record.num_written == 3
    assert 0 < record.num_bytes < 200_000

    into = tmp_path / "home"
    machine = spec.machines[0]
    names = run(
        fetch_results(pair.agent(1).path, machine, spec.id, name=EVERYTHING, into=into)
    )
    assert names == ["small.bin", "sub/out/deep/model.pt", "sub/out/log 12:00.txt"]
    assert (into / "small.bin").read_bytes().startswith(b"changed")

    _, record, said = train()
    assert said == [], "all of it is there already, as it was"
    assert [w.name for w in record.written] == ["out/", "two lines"]

    jobs, _ = run(list_jobs(pair.agent(1)))
    found = next(job for job in jobs if job.spec.id == spec.id)
    assert found.num_bytes
    assert list(found.written) == ["open"]
    number = len(pair.folders(0)) - 1
    pruned = ask(pair, 1, 0, Prune(1))
    assert isinstance(pruned, Pruned)
    assert 0 < pruned.num_jobs <= number, "one that never began goes without a word"
    assert pruned.num_bytes > len(data), "of the store"
    assert len(pair.folders(0)) == 1


@pytest.mark.usefixtures("pair")
def test_the_oldest_jobs_go_first_and_the_newest_stays(tmp_path: Path) -> None:
    machine = JobMachine(NodeId("a" * 52), "open")
    sizes = {"oldest": 300, "killed": 0, "large": 5_000, "new": 10}
    for number, (name, size) in enumerate(sizes.items()):
        folder = JobFolder(tmp_path / name)
        folder.make()
        (folder.logs / "rank-0.log").write_bytes(bytes(size * 1000))
        state = JobState.RUNNING if name == "killed" else JobState.FAILED
        folder.write(
            JobRecord(
                spec=JobSpec(id=name, script="x.py", machines=[machine]),
                machine="open",
                state=state,
                created_s=number,
                work=str(folder.work),
            )
        )
    assert prune_jobs(tmp_path, 4, 10_000_000) == []
    assert JobFolder(tmp_path / "killed").stored().state == JobState.LOST
    removed = prune_jobs(tmp_path, 4, 5_100_000)
    assert [each.spec.id for each in removed] == ["oldest"]
    assert removed[0].num_bytes >= 300_000
    removed = prune_jobs(tmp_path, 4, 10)
    assert sorted(each.spec.id for each in removed) == ["killed", "large"]
    assert os.listdir(tmp_path) == ["new"], "whatever it takes"
    prune_jobs(tmp_path, 0, 10)
    assert os.listdir(tmp_path) == []
