"""``NodeState``: what a node tells all others about itself when a view is made.

Node states travel as opaque payloads of the view. All members see the same states, so
what follows from them (which nodes train together, and with which ranks) needs no
further agreement.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

import msgspec

from ringleader.errors import ProtocolError
from ringleader.ids import Incarnation, NodeId
from ringleader.membership.member import Member
from ringleader.membership.steps.attempt import LineageName
from ringleader.node.protocol.job_failure import JobFailure
from ringleader.settings.run import Partition
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.node_profile import NodeProfile, Text

MAX_NAME = 64
Name = Annotated[
    str,
    msgspec.Meta(
        max_length=MAX_NAME, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028-\u202e]*\Z"
    ),
]
Subject = Annotated[
    str,
    msgspec.Meta(max_length=256, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028-\u202e]*\Z"),
]
"""What a client asks a service for; as long as the subject of a hello."""
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=64)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
ClockSeconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""A monotonic clock, or the difference of two."""
MAX_FAILURES = 2
"""Failures that a node state holds: with the longest texts half of its limit."""


MAX_MODULES = 32
"""Modules of a program that are compared one by one; they take up to 3 KB."""

JobName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]
"""Name of a job; also valid as part of a file name."""


class JobFingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Properties that must agree on all machines of a job. Empty: not compared."""

    script: Name = ""
    """Hash of the program."""
    torch: Name = ""
    """Version; the major and minor number must be equal."""
    ringleader: Name = ""
    """Versions of the protocols between agents and between ranks."""
    compress: Name = ""
    """Compression scheme for gradients."""
    backend: Name = ""
    """Backend of groups for which the program names none, or Gloo."""
    survive: Name = ""
    """"no" if workers do not outlive lost machines (``--survive``), "yes" if they do,
    "majority" if only the larger part of a cluster goes on (``--partition``)."""

    @property
    def survives(self) -> bool:
        """Whether workers outlive lost machines, and newcomers join in place."""
        return self.survive in ("yes", "majority")

    @property
    def partition(self) -> Partition:
        """Which part of a divided cluster goes on with a script of torch."""
        return "majority" if self.survive == "majority" else "continue"

    modules: Annotated[dict[Name, Name], msgspec.Meta(max_length=MAX_MODULES)] = {}
    """Path -> hash of the local modules that the program imports."""


class PastRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round of a job that a process entered."""

    epoch: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    """Epoch of the view that began it."""
    place: Annotated[int, msgspec.Meta(ge=0, le=64)]
    """Place of the node by seniority; see ``agent.job_seniority``."""
    is_complete: bool = False
    """Whether this process saw that all machines of the round had entered it."""


class JobRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process of the node waits for a round of ``job``, or trains in ``round``."""

    job: JobName
    request_id: Annotated[str, msgspec.Meta(max_length=32)]
    """Random: distinguishes a second request from the first."""
    min_nodes: Count
    max_nodes: Count
    wait_s: Seconds
    """How long to wait for more nodes once ``min_nodes`` are here."""
    fingerprint: JobFingerprint = JobFingerprint()
    is_retry: bool = False
    """The process was in an earlier round of this job."""
    round: Name = ""
    """Id of the round it trains in; empty while it waits for one."""
    started_s: ClockSeconds = 0.0
    """When the job was started here, by the monotonic clock of this machine."""
    past_rounds: Annotated[list[PastRound], msgspec.Meta(max_length=8)] = []
    """The last complete round and later ones, the newest first."""
    rank0: Name = ""
    """The machine that the user wants as rank 0; empty: chosen by seniority."""

    @property
    def survives(self) -> bool:
        """Whether workers outlive lost machines, and newcomers join in place."""
        return self.fingerprint.survives

    @property
    def is_established(self) -> bool:
        """Whether all machines of the round that it trains in have entered it."""
        past = self.past_rounds
        return bool(self.round) and bool(past) and past[0].is_complete


class RunWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker process of a job that survives lost machines: one life of it."""

    job: JobName
    started_ms: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
    incarnation: Annotated[Incarnation, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]
    port: Port
    """Port of its control listener."""
    has_ended: bool = False
    """The agent of its machine has seen that the process ended."""

    def member(self, node: NodeId) -> Member:
        """Return the member of the run that this worker of ``node`` is."""
        return Member(self.started_ms, node, self.incarnation)


class JobEnded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node has left a round on purpose; the others need not wait for it."""

    job: JobName
    round: Name
    ok: bool
    history: LineageName = ""
    """Which history the workers have finished, if the run survives losses; else ''."""


class SplitSeen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two parts of the cluster, each with a leader, have found each other."""

    leader: NodeId
    other_leader: NodeId
    epoch: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    """Epoch of the part of ``other_leader``."""


class NodeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One node, as it describes itself."""

    name: Text
    host: Name
    """Equal on nodes that can share memory."""
    addresses: Annotated[list[Name], msgspec.Meta(max_length=16)]
    port: Port
    profile: NodeProfile
    links: Annotated[dict[NodeId, LinkProfile], msgspec.Meta(max_length=64)] = {}
    """Links to other nodes, as this node measured them."""
    clock_offsets: Annotated[
        dict[NodeId, ClockSeconds], msgspec.Meta(max_length=64)
    ] = {}
    """How far the monotonic clocks of linked nodes are ahead of this node's."""
    job_requests: Annotated[list[JobRequest], msgspec.Meta(max_length=16)] = []
    ended_jobs: Annotated[list[JobEnded], msgspec.Meta(max_length=16)] = []
    failures: Annotated[list[JobFailure], msgspec.Meta(max_length=MAX_FAILURES)] = []
    """Why workers of this node failed, the newest last."""
    ready_jobs: Annotated[list[JobName], msgspec.Meta(max_length=64)] = []
    """Set by the leader: these jobs start without waiting for more machines."""

    workers: Annotated[list[RunWorker], msgspec.Meta(max_length=16)] = []
    """Workers of jobs that survive lost machines, the newest last; also ended ones."""

    coordinator_rank: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 32) - 1)] = -1
    """Rank that a coordinator gave this node; -1: none."""

    accepts_jobs: bool = False
    """Whether machines of the cluster may run programs there as its user."""

    split: SplitSeen | None = None
    """A split this node noticed within the last half minute."""

    def request_for(self, job: str) -> JobRequest | None:
        """Return this node's request for ``job``, if it has one."""
        return next((each for each in self.job_requests if each.job == job), None)


MAX_STATE_BYTES = 32 << 10
_ENCODER = msgspec.msgpack.Encoder()
MAX_KEPT = 128
"""Decoded states that are kept, at most 4 MB of payloads. Most members of a view have
the state of the view before."""
_decode = lru_cache(MAX_KEPT)(msgspec.msgpack.Decoder(NodeState).decode)


def encode(state: NodeState) -> bytes:
    """Return the payload that travels with the view."""
    return _ENCODER.encode(state)


def decode(data: bytes, node: NodeId) -> NodeState:
    """Decode the state of ``node``; raises ``ProtocolError`` naming the node.

    Equal bytes give the same object: nobody may change what is in it.
    """
    if len(data) > MAX_STATE_BYTES:
        text = f"sent a node state of {len(data)} bytes; limit {MAX_STATE_BYTES}"
        raise ProtocolError(node, text)
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(node, f"sent an invalid node state ({exc})") from exc


def decode_all(payloads: Mapping[Member, bytes]) -> dict[Member, NodeState]:
    """Decode the states of all members, without those whose state is invalid.

    Such a member takes part in the view, but in no job.
    """
    found = {}
    for member, data in payloads.items():
        try:
            found[member] = decode(data, member.node)
        except ProtocolError:
            continue
    return found
