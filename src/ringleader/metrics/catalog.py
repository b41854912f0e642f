"""Every metric of Ringleader: name, kind, unit, labels and meaning.

Names follow Prometheus: base units in the name (seconds, bytes), counters end in
``_total``. docs/metrics.md and the Grafana dashboard may use only names of this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CALL_BUCKETS_S = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3),
    *(1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""From a call in shared memory (10 us) to one over a home's uplink."""
REQUEST_BUCKETS_S = (1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0)
"""From an answer out of memory to an upload of weights over a slow line."""


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    """Only grows, until its process ends or it is reset."""
    GAUGE = "gauge"
    """The state at this moment."""
    HISTOGRAM = "histogram"
    """Observed values, counted in buckets."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; a series of values for each combination of its labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets; one without a bound follows them."""


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, text, labels)


# -- workers: groups of ranks ---------------------------------------------------------

CALL = ("operation", "algorithm", "codec")
CALLS = _counter(
    "ringleader_collective_calls_total",
    'Collective calls that ended; outcome is "ok" or "failed".',
    *CALL,
    "outcome",
)
CALL_SECONDS = Metric(
    "ringleader_collective_seconds",
    Kind.HISTOGRAM,
    "Duration of collective calls that ended well, waiting included.",
    CALL,
    CALL_BUCKETS_S,
)
CALL_BYTES = _counter(
    "ringleader_collective_bytes_total",
    "Bytes of the tensors of collective calls, before any codec, failed ones included.",
    *CALL,
)
WAIT_SECONDS = _counter(
    "ringleader_collective_wait_seconds_total",
    "Time in collective calls in which this rank could not go on, by the rank whose "
    "bytes or signal it lacked.",
    "peer",
)
WAITS = _counter("ringleader_collective_waits_total", "Number of such waits.", "peer")
LINK = ("peer", "kind", "stream")
SENT_BYTES = _counter(
    "ringleader_link_sent_bytes_total",
    "Bytes handed to the link to a peer, encrypted ones where the link encrypts. "
    'stream is "tensors" (collectives) or "control" (messages and notices).',
    *LINK,
)
RECEIVED_BYTES = _counter(
    "ringleader_link_received_bytes_total",
    "Bytes taken from the link to a peer, counted like the sent ones.",
    *LINK,
)
CODEC = ("codec", "step")
CODEC_SECONDS = _counter(
    "ringleader_codec_seconds_total",
    'Time spent on codecs in collective calls; step is "encode" or "decode".',
    *CODEC,
)
CODEC_RAW_BYTES = _counter(
    "ringleader_codec_raw_bytes_total", "Bytes of values before encoding.", *CODEC
)
CODEC_CODED_BYTES = _counter(
    "ringleader_codec_coded_bytes_total", "Bytes of values after encoding.", *CODEC
)
COMPRESSION_RAW_BYTES = _counter(
    "ringleader_compression_raw_bytes_total",
    "Bytes of gradients given to compression.",
    "scheme",
)
COMPRESSION_SENT_BYTES = _counter(
    "ringleader_compression_sent_bytes_total",
    "Bytes that this rank contributed instead of them.",
    "scheme",
)
COMPRESSION_SECONDS = _counter(
    "ringleader_compression_seconds_total",
    "Time from a bucket of gradients to its compressed sum, communication included.",
    "scheme",
)
GROUPS = _gauge("ringleader_groups", "Groups of ranks that are open in this process.")
GROUP_FAILURES = _counter(
    "ringleader_group_failures_total", "Groups broken by an error.", "error"
)
START_TIME = _gauge(
    "ringleader_process_start_time_seconds",
    "When measuring began in this process, in seconds since 1970.",
)

# -- the agent: membership, jobs ------------------------------------------------------

PEERS = _gauge(
    "ringleader_peers",
    "Other machines of the cluster that this agent knows, by state: healthy, suspect "
    "(silent), dead or unknown.",
    "state",
)
PEER_LATENCY = _gauge(
    "ringleader_peer_latency_seconds",
    "Mean round trip of heartbeats, in which the newest counts for a fifth.",
    "peer",
)
PEER_SILENCE = _gauge(
    "ringleader_peer_silence_seconds", "Time since a machine was last heard.", "peer"
)
PEER_HEARD = _counter(
    "ringleader_peer_messages_total", "Messages heard from a machine.", "peer"
)
PEER_MISSED = _counter(
    "ringleader_peer_missed_heartbeats_total",
    "Heartbeats of a machine that were due and did not arrive.",
    "peer",
)
PEER_LINKS = _counter(
    "ringleader_peer_links_total",
    'Control connections to other agents; event is "up" or "down".',
    "event",
)
AGENT_SENT_BYTES = _counter(
    "ringleader_agent_sent_bytes_total",
    "Bytes of messages to other agents, before encryption.",
)
AGENT_RECEIVED_BYTES = _counter(
    "ringleader_agent_received_bytes_total",
    "Bytes of messages from other agents, before encryption.",
)
STRANGERS = _counter(
    "ringleader_refused_connections_total",
    "Connections refused because the other side could not prove that it belongs here.",
)
ELECTIONS = _counter(
    "ringleader_elections_total", "Changes of the leader that this agent saw."
)
IS_LEADER = _gauge("ringleader_is_leader", "1 if this machine is the leader, else 0.")
ROLE_SECONDS = _counter(
    "ringleader_role_seconds_total",
    'Time in a role: "leader", "follower" or "alone".',
    "role",
)
VIEW_EPOCH = _gauge("ringleader_view_epoch", "Number of the view, which only grows.")
VIEW_MEMBERS = _gauge("ringleader_view_members", "Machines in the view.")
VIEWS = _counter("ringleader_views_total", "Views installed by this agent.")
JOBS = _gauge(
    "ringleader_jobs",
    "Jobs that this machine takes part in: waiting for machines, or running.",
    "state",
)
ROUNDS = _counter("ringleader_rounds_total", "Rounds of jobs that began here.")
WORKERS = _gauge(
    "ringleader_workers", "Worker processes on this machine that report metrics."
)

# -- the internet server --------------------------------------------------------------

SERVER_REQUESTS = _counter(
    "ringleader_server_requests_total",
    'Requests answered, by endpoint and class of status ("2xx").',
    "endpoint",
    "status",
)
SERVER_SECONDS = Metric(
    "ringleader_server_request_seconds",
    Kind.HISTOGRAM,
    "Duration of requests, transfer included.",
    ("endpoint",),
    REQUEST_BUCKETS_S,
)
SERVER_SENT_BYTES = _counter(
    "ringleader_server_sent_bytes_total", "Bytes of answers' bodies.", "endpoint"
)
SERVER_RECEIVED_BYTES = _counter(
    "ringleader_server_received_bytes_total", "Bytes of requests' bodies.", "endpoint"
)
SERVER_UPDATES = _counter(
    "ringleader_server_updates_total", "Updates of workers, by verdict.", "verdict"
)
SERVER_WORKERS = _gauge(
    "ringleader_server_workers", "Workers that the server has heard lately."
)
SERVER_VERSION = _gauge(
    "ringleader_server_version", "Version of the global weights: rounds applied."
)

METRICS = {
    each.name: each for each in list(globals().values()) if isinstance(each, Metric)
}
"""All metrics by name, in the order above."""
