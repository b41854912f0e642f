"""Layers of the package: the table that tests enforce and docs/architecture.md shows.

A package imports from lower layers only, never from its own layer or a higher one. The
same holds for the rooms (sub-packages) of a package where their order is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Plane(StrEnum):
    """The two halves of the library that do not import each other."""

    DATA = "data"
    CONTROL = "control"
    NONE = ""


@dataclass(frozen=True, slots=True)
class Package:
    """A package or top-level module of ringleader."""

    name: str
    purpose: str
    plane: Plane = Plane.NONE
    is_pure: bool = False
    """Pure packages decide: they import no sockets, threads, clocks, files, arrays."""
    rooms: tuple[tuple[str, str], ...] = ()
    """Name and purpose of each sub-package."""
    room_order: str = ""
    """Sub-packages from the lowest to the highest, rows separated by ``|``."""
    pure_rooms: tuple[str, ...] = ()
    """Sub-packages that are pure in a package that is not."""


DATA, CONTROL = Plane.DATA, Plane.CONTROL

LAYERS: tuple[tuple[Package, ...], ...] = (
    (
        Package("__init__", "the public names: `ringleader.group`, errors, settings"),
        Package("__main__", "`python -m ringleader`: the command"),
    ),
    (
        Package(
            "testing",
            "test kit: ranks in processes and threads, link contract, full disks; "
            "product code never imports it",
        ),
    ),
    (
        Package(
            "cli",
            "the commands of `ringleader`, one module each",
            rooms=(
                ("bench", "`ringleader bench`: collectives beside Gloo and OpenMPI"),
                ("demo", "`ringleader demo`: a training run on this machine"),
            ),
        ),
    ),
    (
        Package(
            "monitoring",
            "services of an agent for the dashboard: load, numbers, the web server",
        ),
    ),
    (
        Package(
            "doctor",
            "network diagnosis: gathers facts about this machine and its peers",
            rooms=(("rules", "pure functions from facts to findings"),),
        ),
        Package(
            "simulation",
            "simulators behind `ringleader simulate` and the tests",
            rooms=(
                ("collectives", "predicts the time of a collective on a network"),
                ("lan", "a LAN of network namespaces on one machine"),
                ("membership", "many nodes with a virtual clock and seeded faults"),
                ("steps", "the step protocol under an adversary, with an oracle"),
            ),
            room_order="collectives lan membership | steps",
        ),
    ),
    (
        Package(
            "jobs",
            "programs that one command starts on several machines of the cluster",
            rooms=(
                ("client", "jobs of all machines, from where a command is typed"),
                ("machine", "jobs on one machine: folder, logs, processes, service"),
                ("protocol", "what a job is, its record, messages about it"),
            ),
            room_order="protocol | client machine",
        ),
    ),
    (
        Package(
            "training",
            "`ringleader.elastic`: a training loop that survives the loss of machines",
            rooms=(
                ("control", "membership among the processes of a run, in a thread"),
                ("data", "pure functions: which samples, by whom; the ledger; loader"),
                ("join", "live join: a newcomer follows the run before it is a member"),
                ("low_comm", "rounds of many local steps: DiLoCo, SparseLoCo"),
                ("state", "replicated state: digests, transfer, checkpoints"),
            ),
            room_order="data | state | control join | low_comm",
        ),
        Package(
            "project",
            "the files and the Python environment that a job needs on each machine",
        ),
    ),
    (
        Package(
            "node",
            "the agent process of a machine, and how training jobs use it",
            rooms=(
                ("agent", "the agent: membership, jobs, local requests, status"),
                ("launch", "code in user processes: starts an agent, joins rounds"),
                ("peering", "links between agents: accept, dial, authenticate, probe"),
                ("protocol", "messages between agents, and with local processes"),
                ("worker", "`WorkerNode`: start, readiness, health, shutdown"),
            ),
            room_order="protocol | peering launch | agent worker",
        ),
    ),
    (
        Package(
            "discovery",
            "finds nodes on the LAN: mDNS, address lists, pairing announcements",
            CONTROL,
        ),
    ),
    (
        Package(
            "topology",
            "interfaces, measured links, and the ring order that follows",
            CONTROL,
        ),
    ),
    (
        Package(
            "membership",
            "failure detection, leader election and views, as a state machine",
            CONTROL,
            is_pure=True,
            rooms=(("steps", "the step protocol: which update a run applies next"),),
        ),
    ),
    (
        Package(
            "paramserver",
            "training over the internet: a server holds the weights, workers send "
            "updates by HTTPS",
            rooms=(
                ("protocol", "messages, tensor files, manifest, join link, OpenAPI"),
                ("server", "admission, scheduling, checks of updates, checkpoints"),
                ("tasks", "training tasks: model, data, loss"),
                ("worker", "join, fetch weights, train, upload updates"),
            ),
            room_order="protocol | tasks | server worker",
        ),
    ),
    (
        Package(
            "data",
            "each rank's samples, resumable in mid-epoch; data of one machine for all",
            DATA,
        ),
    ),
    (
        Package(
            "checkpoint",
            "crash-safe checkpoints on DCP, without a shared disk",
            DATA,
        ),
        Package(
            "parallel",
            "`parallelize`: DDP, FSDP, tensor parallel; SyncBatchNorm",
            DATA,
            rooms=(
                ("plan", "pure functions: which machine gets which layers"),
                ("measurement", "times and sizes of layers, memory of this machine"),
                ("pipeline", "a model's layers on several machines"),
                ("strategies", "what each strategy of `parallelize` makes of a model"),
            ),
            room_order="plan | measurement | pipeline | strategies",
            pure_rooms=("plan",),
        ),
        Package(
            "dashboard",
            "`ringleader.log`, and the web page of a cluster: state, access, server",
        ),
        Package(
            "coordinator",
            "workers find each other by gRPC where multicast does not work",
            CONTROL,
            rooms=(
                ("client", "the worker's side: registers, beats, watches peers"),
                ("registry", "ranks, leases and checkpoints, as a state machine"),
                ("server", "the coordinator process: service, state file, TLS"),
                ("v1", "messages and stubs, generated from `proto/`"),
            ),
            room_order="v1 registry | client server",
            pure_rooms=("registry",),
        ),
    ),
    (
        Package(
            "compression",
            "gradient compression by name, for DDP, FSDP and by hand",
            DATA,
        ),
        Package("rpc", "calls to functions on other ranks; references", DATA),
        Package(
            "tracing",
            "where the time of a step goes, on all ranks and on one clock",
            DATA,
            rooms=(("analysis", "pure functions from events to parts, table, file"),),
            pure_rooms=("analysis",),
        ),
        Package(
            "rounds",
            "many local steps, then one exchange: outer step, means, lengths of rounds",
        ),
    ),
    (
        Package(
            "backend",
            "the torch.distributed backend: process group, work handles, devices",
            DATA,
        ),
    ),
    (
        Package(
            "groups",
            "a group of ranks: collectives and messages on tensors, errors, ending",
            DATA,
        ),
    ),
    (
        Package(
            "engine",
            "runs one collective call on arrays, by an engine for its algorithm",
            DATA,
            rooms=(
                ("over_links", "engines that send: exchange, stream, with a codec"),
                ("shared_memory", "the engine for ranks of one host: slots and relay"),
            ),
            room_order="over_links shared_memory",
        ),
    ),
    (
        Package(
            "transport",
            "links to peers: TCP, TLS, shared memory; listening, dialing, the mesh",
            DATA,
            rooms=(
                ("mpi", "links over MPI messages, for jobs that mpirun starts"),
                ("star", "links that pass through rank 0, over gRPC"),
            ),
        ),
    ),
    (
        Package(
            "metrics", "counts and times of this process, and how others read them"
        ),
        Package(
            "identity",
            "node keys, cluster secret, certificates, pairing by PIN or phrase",
            rooms=(
                ("certificates", "issue and verify node certificates; TLS; strangers"),
                ("pairing", "joining a cluster by PIN: SPAKE2, both sides, limits"),
                ("storage", "private files, file locks, the `~/.ringleader` directory"),
            ),
            room_order="storage | certificates pairing",
        ),
    ),
    (
        Package(
            "wire", "byte layouts of headers, hellos and control frames", DATA, True
        ),
        Package(
            "collectives",
            "schedules of the collective algorithms, their cost, the choice",
            DATA,
            is_pure=True,
        ),
        Package("codec", "float32 arrays in fewer bytes: int8, 1 bit, fp16, bf16"),
        Package("settings", "the only reader of environment variables"),
    ),
    (
        Package("deadline", "one moment that bounds a whole operation"),
        Package("log_limit", "bounds what strangers can make a process log"),
    ),
    (
        Package("connection_room", "places for connections; silent ones make room"),
        Package("decoding", "messages of a type, decoded in any thread"),
        Package("grpc_server", "gRPC's asyncio server, which no stranger's call ends"),
        Package("errors", "every error, ordered by what the caller should do"),
        Package("ids", "typed ids of nodes, clusters and jobs"),
        Package("rate_limit", "how often something may happen: token buckets"),
    ),
)
"""From the top to the bottom: imports point down."""

PACKAGES = {package.name: package for layer in LAYERS for package in layer}
HEIGHT = {
    package.name: height
    for height, layer in enumerate(reversed(LAYERS))
    for package in layer
}


def room_heights(package: Package) -> dict[str, int]:
    """Height of each sub-package whose place is given."""
    rows = package.room_order.split("|")
    return {name: height for height, row in enumerate(rows) for name in row.split()}
