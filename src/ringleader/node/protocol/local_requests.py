"""Requests of local processes to their agent, and the agent's replies.

Both ends belong to one user on one machine. The decoders are strict all the same.
"""

from __future__ import annotations

from typing import cast

import msgspec

from ringleader import errors
from ringleader.errors import (
    ConfigError,
    InternalError,
    PeerError,
    ProtocolError,
    RingleaderError,
)
from ringleader.ids import Incarnation
from ringleader.membership.steps.attempt import LineageName
from ringleader.node.protocol.job_failure import JobFailure
from ringleader.node.protocol.node_state import (
    Count,
    JobFingerprint,
    JobName,
    Name,
    Port,
    Seconds,
    Subject,
)
from ringleader.node.protocol.run_peers import RunPeers
from ringleader.node.protocol.snapshot import Snapshot


class _Tagged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A message that carries the name of its type."""


class EnterJob(_Tagged, frozen=True, kw_only=True):
    """Take part in ``job``.

    Answered by any number of ``Progress``, then ``RoundEntered`` or ``RequestFailed``.
    """

    job: JobName
    min_nodes: Count
    max_nodes: Count
    wait_s: Seconds
    timeout_s: Seconds
    fingerprint: JobFingerprint = JobFingerprint()
    rank0: Name = ""
    """Name or id of the machine that must be rank 0; empty: chosen by seniority."""


class StoreOpened(_Tagged, frozen=True):
    """The TCPStore of ``round`` listens on 127.0.0.1. Reply: ``RequestDone``."""

    round: str
    port: int


class RoundComplete(_Tagged, frozen=True):
    """All machines of ``round`` have reached its store. Reply: ``RequestDone``."""

    round: str


class CheckRound(_Tagged, frozen=True):
    """Ask whether the round of ``job`` goes on. Reply: ``RoundStatus``."""

    job: str


class ReportFailure(_Tagged, frozen=True):
    """A worker of this machine has failed. Reply: ``RequestDone``."""

    failure: JobFailure


class FollowRun(_Tagged, frozen=True, kw_only=True):
    """A worker of ``job``, which survives lost machines, listens on ``port``.

    Answered by ``RunPeers``, again at every change, until the worker closes. Any
    process of this user may send it.
    """

    job: JobName
    started_ms: int
    incarnation: Incarnation
    port: Port
    pid: int
    can_return: bool = True
    """Whether a new life of the worker could join the run that goes on."""


class EndRun(_Tagged, frozen=True):
    """The worker of ``job`` has finished; ``history`` names the state that it has.

    Reply: ``RequestDone``. Any process of this user may send it.
    """

    job: JobName
    history: LineageName


class FinishRound(_Tagged, frozen=True):
    """The workers of this machine have ended; it stays in the round of ``job`` until
    all have. Reply: ``RequestDone``."""

    job: str
    ok: bool = True
    """Whether they have succeeded."""


class LeaveJob(_Tagged, frozen=True):
    """This process has left ``job``. Reply: ``RequestDone``, once all nodes know."""

    job: str
    ok: bool | None = None
    """Whether the job succeeded; None if the other nodes need not be told."""


class GetSnapshot(_Tagged, frozen=True):
    """Ask for everything the agent knows. Reply: ``Snapshot``."""


class UseService(_Tagged, frozen=True):
    """Talk to a service of the agent; see ``agent.services``.

    Reply: ``RequestDone``; what follows on the connection is up to the service. Any
    process of this user may send it.
    """

    purpose: Name
    subject: Subject = ""


EVENTS = "events"
"""Purpose of the service that sends a ``ClusterEvent`` for each event."""
PERMISSION = "permission"
"""Purpose of the service that takes ``SetJobsPermission``."""


class SetJobsPermission(_Tagged, frozen=True):
    """Accept or refuse jobs of other machines. Reply: ``RequestDone``."""

    allowed: bool


class RoundEntered(_Tagged, frozen=True, kw_only=True):
    """A round has begun with this node in it."""

    round: str
    rank: int
    """Rank of this node among the nodes."""
    size: int
    store_port: int
    """Port of the store on 127.0.0.1. 0 on rank 0, which opens the store itself and
    sends ``StoreOpened``."""
    names: list[str]
    """Names of the machines in rank order."""
    credentials: str
    """Path of the credentials file for the workers of this node."""
    addresses: list[str]
    """Addresses of this node for the workers' data links."""
    interface: str
    """Network interface that reaches the other nodes; empty if there is none."""
    lost_after_s: float
    """How long the agents need to notice that a machine is lost."""
    is_joiner: bool = False
    """This node joined a round that runs; see ``--survive``."""
    agent_socket: str = ""
    """Path of the Unix socket where workers find the agent; empty if there is none."""
    silence_s: float = 0.0
    """How long the agents wait for a silent machine before they go on without it."""


class Progress(_Tagged, frozen=True):
    """Sentence for the user about what the agent is waiting for."""

    text: str


class RequestFailed(_Tagged, frozen=True):
    """The request failed with an error of ours."""

    error: str
    """Name of its class."""
    peer: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> RequestFailed:
        """Describe ``error``; one that is not ours is a bug of the agent."""
        if isinstance(error, PeerError):
            return cls(type(error).__name__, str(error.peer), error.text)
        if isinstance(error, RingleaderError):
            return cls(type(error).__name__, "", error.text)
        return cls(InternalError.__name__, "", f"{type(error).__name__}: {error}")

    def to_error(self) -> RingleaderError:
        """The error, to be raised by the process that made the request."""
        kind = cast("type[RingleaderError]", getattr(errors, self.error))
        if issubclass(kind, PeerError):
            return kind(self.peer, self.text)
        return kind(self.text)


class RoundStatus(_Tagged, frozen=True):
    """Reply to ``CheckRound``."""

    is_stale: bool
    """Whether the workers must leave the round and enter the next one."""
    reason: str = ""
    unfinished: list[int] = []
    """Ranks of the other nodes whose workers are still at it."""
    gone: list[int] = []
    """Ranks of the nodes that have left the round without finishing it."""
    finished: list[int] = []
    """Ranks of the other nodes whose workers have succeeded."""
    names: list[str] = []
    """Names of the machines by rank. Those that joined later have the last ranks."""
    failures: dict[int, JobFailure] = {}
    """What failed on the other nodes, by their ranks."""
    unreachable: list[int] = []
    """Those that are gone because nothing is heard of their machines."""
    can_return: bool = True
    """Whether a new life of the worker here could join the run that goes on."""
    histories: dict[int, str] = {}
    """Names of the histories of a run with which nodes have finished it, this one's,
    too. Different ones have trained apart, each a state of its own."""


class RequestDone(_Tagged, frozen=True):
    """The request was carried out."""


Request = (
    EnterJob
    | StoreOpened
    | RoundComplete
    | CheckRound
    | FollowRun
    | EndRun
    | ReportFailure
    | FinishRound
    | LeaveJob
    | GetSnapshot
    | UseService
)
Reply = (
    RoundEntered
    | Progress
    | RequestFailed
    | RoundStatus
    | RequestDone
    | RunPeers
    | Snapshot
)

_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLY: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def decode_request(body: bytes) -> Request:
    """Decode a request; raises ``ProtocolError``."""
    try:
        return _REQUEST.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError("a local process", f"invalid request ({exc})") from exc


def validate(request: EnterJob) -> None:
    """Raise ``ConfigError`` if a field is outside the limits the agent accepts."""
    try:
        _REQUEST.decode(msgspec.msgpack.encode(request))
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"job {request.job!r}: {exc}") from exc


def decode_reply(body: bytes) -> Reply:
    """Decode a reply of an agent; raises ``ProtocolError``."""
    try:
        return _REPLY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError("the agent", f"invalid reply ({exc})") from exc
