"""``run_on_cluster``: ``ringleader run`` typed on one machine, for all of them."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ringleader.cli.job_output import ShownJob, complain, terminal_size
from ringleader.cli.run_options import check_text
from ringleader.cli.terminal import is_interactive
from ringleader.cli.travel import staying_arguments
from ringleader.errors import ConfigError, RingleaderError
from ringleader.jobs.client.channel import ResidentAgent
from ringleader.jobs.client.fetch_results import fetch_results
from ringleader.jobs.client.job_requests import jobs_of, stop_everywhere
from ringleader.jobs.client.job_summary import INTERRUPTED
from ringleader.jobs.client.machine_choice import (
    Wanted,
    all_machines,
    choose_machines,
    idle_machines,
)
from ringleader.jobs.client.start_job import JobStart, Project, Ready
from ringleader.jobs.client.twin_job import (
    arbiter,
    comes_first,
    find_twin,
    starter,
)
from ringleader.jobs.machine.job_folder import find_jobs, jobs_directory
from ringleader.jobs.machine.project_transfer import project_store
from ringleader.jobs.protocol.job_record import JobRecord
from ringleader.jobs.protocol.job_spec import JobMachine, JobSpec
from ringleader.node.launch.program import Program
from ringleader.project import collect, environment_needs, keep, needs_in_place
from ringleader.project.blob_store import size_text
from ringleader.project.project_files import ProjectFiles

LARGE_BYTES = 100_000_000
"""Projects of this size are worth a hint: they travel for a minute over Wi-Fi."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """The command line, checked."""

    program: Program
    options: list[str]
    """Options for the launcher of each machine."""
    processes: int
    wanted: Wanted
    fetch: list[str]
    trace: Path | None
    """Where the trace goes on this machine."""
    only_rank: int | None
    is_quiet: bool
    is_detached: bool
    only_prepares: bool
    """Whether nothing starts: a dry run of a program that makes no plan itself."""
    is_synced: bool
    syncs_environment: bool
    """Whether machines that lack packages install them for the job."""
    home: Path


def run_on_cluster(agent: ResidentAgent, order: ClusterRun) -> int:
    """Start the program on the machines, show it, and return the exit status."""
    if order.syncs_environment and not order.is_synced:
        text = "--sync-env: the list of packages travels with the project"
        raise ConfigError(f"{text}; omit --no-sync")
    machines = choose_machines(agent.snapshot, order.wanted)
    for sentence in idle_machines(agent.snapshot, machines, order.wanted):
        _say(sentence)
    script = Path(order.program.path)
    folder = _module_folder(order.program)
    files = collect(script, folder=folder) if order.is_synced else None
    for sentence in files.left_out if files else ():
        _say(f"stays here: {sentence}")
    for sentence in _what_stays(order, files):
        _say(sentence)
    if files is not None and (hint := large_hint(files)):
        _say(hint)
    spec = make_spec(order, machines, files, name_here(agent))
    names_machines = bool(order.wanted.on or order.wanted.without)
    may_be_twin = not (names_machines or order.only_prepares)
    if may_be_twin and (twin := _twin(order, spec)) is not None:
        if not _is_wanted_again(twin):
            return _accompany_twin(agent, order, twin)
        may_be_twin = False
    start = JobStart(
        agent.path,
        spec,
        _pack(files, order.home) if files else None,
        _say,
        needs=environment_needs(files) if files else needs_in_place(script, folder),
    )
    if order.only_prepares:
        start.check = _print_plan
    elif may_be_twin:
        start.check = partial(_check_twin, agent, order, spec)
    try:
        return asyncio.run(_run(agent, order, start))
    except _DryRun:
        return 0
    except _Twin as exc:
        return _accompany_twin(agent, order, exc.record)
    except KeyboardInterrupt:
        _say(f"job {spec.id} was stopped before it ran")
        return INTERRUPTED


def _module_folder(program: Program) -> Path | None:
    """Return where ``python -m`` is typed, if it finds the module there."""
    here = Path.cwd().resolve()
    path = Path(program.path).resolve()
    return here if program.is_module and path.is_relative_to(here) else None


class _Twin(Exception):
    """Another command has started this job, so that this one must not."""

    def __init__(self, record: JobRecord) -> None:
        super().__init__(record)
        self.record = record


def _twin(order: ClusterRun, spec: JobSpec) -> JobRecord | None:
    """Return the job of the same command, typed on another machine a moment ago."""
    jobs = find_jobs(jobs_directory(order.home))
    return find_twin(jobs, spec, Path(order.program.path), time.time())


class _DryRun(Exception):
    """All machines are prepared, and nothing is to be started."""


async def _print_plan(ready: Ready) -> None:
    """Tell what would start, and let nothing of it start; raises ``_DryRun``."""
    _say("--dry-run: every machine has the files and the environment it needs")
    for machine, prepared in ready:
        number = prepared.processes
        workers = "1 worker" if number == 1 else f"{number} workers"
        leads = ", rank 0 first" if machine == ready[0][0] else ""
        _say(f"  {machine.name}: {workers}{leads}")
    _say("nothing of the program has run")
    raise _DryRun


async def _check_twin(
    agent: ResidentAgent, order: ClusterRun, spec: JobSpec, _ready: Ready
) -> None:
    """Raise ``_Twin`` if the same command was typed elsewhere, and came first."""
    twin = await asyncio.to_thread(_twin, order, spec)
    judge = arbiter(spec, twin.spec) if twin else None
    if twin is not None and judge is not None:
        records = await jobs_of(agent.path, judge)
        if not comes_first(spec.id, twin.spec.id, records):
            raise _Twin(twin)


def _is_wanted_again(twin: JobRecord) -> bool:
    """Ask, where somebody can answer, whether a program shall run twice."""
    if not is_interactive():
        return False
    sys.stderr.write(
        f"{starter(twin)} has just started this program on all machines, as job "
        f"{twin.spec.id}. Show that job (Enter), or start it once more (again)? "
    )
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() == "again"


def _accompany_twin(agent: ResidentAgent, order: ClusterRun, twin: JobRecord) -> int:
    _say(
        f"{starter(twin)} has just started this program on all machines; this "
        "is that job, not a second one (which needs --on or --not)"
    )
    return asyncio.run(_accompany(agent, order, twin.spec))


async def _run(agent: ResidentAgent, order: ClusterRun, start: JobStart) -> int:
    spec = start.spec
    await start.run()
    try:
        return await _accompany(agent, order, spec)
    except asyncio.CancelledError:  # Ctrl-C before the job was shown
        await stop_everywhere(agent.path, spec.machines, spec.id, is_urgent=True)
        raise


async def _accompany(agent: ResidentAgent, order: ClusterRun, spec: JobSpec) -> int:
    """Show the job until it has ended, fetch its results, return the exit status."""
    names = ", ".join(machine.name for machine in spec.machines)
    _say(f"job {spec.id} on {names}")
    if order.is_detached:
        _say(f"it goes on by itself; see: ringleader attach {spec.id}")
        return 0

    def shows(rank: int) -> bool:
        return not order.is_quiet and order.only_rank in (None, rank)

    wanted = [(path, Path.cwd()) for path in order.fetch]
    if order.trace is not None:
        wanted.append((order.trace.name, order.trace.parent))
    fetched = [Path(path).as_posix() for path, _ in wanted]
    shown = ShownJob(agent.path, spec, shows, order.only_rank, fetched=fetched)
    code = await shown.run()
    for path, into in wanted:
        try:
            await _fetch(agent, spec, path, into)
        except RingleaderError as exc:
            complain(f"could not fetch {path} from {exc}")
            code = code or 1
    return code


async def _fetch(agent: ResidentAgent, spec: JobSpec, path: str, into: Path) -> None:
    first = spec.machines[0]
    names = await fetch_results(agent.path, first, spec.id, name=path, into=into)
    _say(f"fetched {path} from {first.name} ({_count(names)})")


def make_spec(
    order: ClusterRun,
    machines: Sequence[JobMachine],
    files: ProjectFiles | None,
    started_on: str = "",
) -> JobSpec:
    """Return the job: the program with the folder that it runs in."""
    program, here = order.program, Path.cwd().resolve()
    script, folder = program.name, str(here)
    if not program.is_module:
        script = os.path.relpath(Path(program.path).resolve(), here)
    if files is not None:
        root = files.root.resolve()
        if here.is_relative_to(root):
            folder = here.relative_to(root).as_posix()
        elif program.is_module:
            text = f"module {program.name} lies outside of {here}"
            raise ConfigError(f"{text}; go to the folder of its project")
        else:
            folder = str(Path(files.script).parent.as_posix())
            script = Path(files.script).name
    elif not program.is_module:
        script = str(Path(program.path).resolve())
    for word in (script, folder, *program.args, *order.options):
        check_text(word)
    names = [machine.name for machine in machines]
    wants_terminal = not (order.is_detached or order.is_quiet)
    shows_first = wants_terminal and order.only_rank in (None, 0)
    return JobSpec(
        id=new_job_id(program.name),
        script=script,
        is_module=program.is_module,
        args=list(program.args),
        options=order.options,
        folder=folder if folder != "." else "",
        is_synced=files is not None,
        syncs_environment=order.syncs_environment,
        processes=order.processes,
        machines=list(machines),
        started_on=started_on,
        terminal=terminal_size(names) if shows_first else None,
    )


def name_here(agent: ResidentAgent) -> str:
    """Return the name of this machine, with its id if others have the same name."""
    return all_machines(agent.snapshot)[0].name


def new_job_id(program: str) -> str:
    """Return an id that begins like the program, and is new in the cluster."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(program).stem).strip("-")[:24]
    return f"{stem or 'job'}-{secrets.token_hex(3)}"


def _what_stays(order: ClusterRun, files: ProjectFiles | None) -> list[str]:
    """Return sentences about paths of the command that each machine has of its own."""
    told = []
    if "--checkpoint" in order.options:
        folder = order.options[order.options.index("--checkpoint") + 1]
        if "://" not in folder:
            told.append(f"checkpoints: each machine keeps its own in {folder}")
    if files is not None:
        here, names = Path.cwd().resolve(), [f.path for f in files.manifest.files]
        names += [link.path for link in files.manifest.links]
        told += staying_arguments(order.program.args, here, files.root, names)
    return told


def large_hint(files: ProjectFiles) -> str:
    """Return what somebody can do whose project has much data; '': it has not."""
    total = files.manifest.num_bytes
    if total < LARGE_BYTES:
        return ""
    most = max(files.manifest.files, key=lambda file: file.num_bytes)
    text = f"the project has {size_text(total)}, {size_text(most.num_bytes)} of it in"
    text = f"{text} {most.path}; every machine gets a copy for each job that runs."
    text = f"{text} If it is listed in .gitignore and the program reads it at"
    return f'{text} ringleader.fetch("{files.root / most.path}"), there is one for all'


def _pack(files: ProjectFiles, home: Path) -> Project:
    store = project_store(home)
    keep(files, store)
    return Project(manifest=files.manifest, store=store)


def _say(text: str) -> None:
    sys.stderr.write(f"ringleader: {text}\n")
    sys.stderr.flush()


def _count(names: list[str]) -> str:
    return "1 file" if len(names) == 1 else f"{len(names)} files"
