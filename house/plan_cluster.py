"""cluster: which machines are there, who is a member, and who trains with which rank. With `coordinator`.

From `node.launch` come what starts and asks agents (`agent_process`, `agent_settings`, `resident_agent`,
`resident_events`, `agent_peers`): no launcher, and cli, jobs and elastic use them without launching anything.
`node.worker` and `coordinator.health_service`'s caller are code in the user's process: they go to launch (plan_launch).
`port_owner` and `process_tree` are used by the dashboard alone: it merges them where they are used.
Run this with move_pc.py, after the plan of trust (names in identity do not matter), before or after that of elastic.
"""

import re
from pathlib import Path

SRC = Path("src/ringleader")


def module_with(definition: str) -> str:
    """The module (today, wherever it has been moved) that holds a line that begins so."""
    for path in sorted(SRC.rglob("*.py")):
        if re.search(rf"^{definition}", path.read_text(), re.M):
            return ".".join(path.relative_to(SRC).with_suffix("").parts)
    raise SystemExit(f"plan_cluster: nobody defines {definition}")


DOCS = {
    "cluster": """The machines of a cluster: found, connected, agreed upon, and ranked for training.

Each machine runs one agent process. ``mdns`` and ``peer_addresses`` find the others,
``peer_connection`` connects them, ``membership`` (pure) agrees on who is alive, and
``rank_assignment`` decides who trains together. Local processes talk to their agent by
``agent_client``. ``coordinator`` is an extra, where multicast does not work.""",
    "cluster.membership": """Failure detection, leader election and agreement on views, as a pure state
machine.""",
    "cluster.sightings": """The nodes of our cluster that were seen on the network, from signed records. Pure.

``NodeRecord`` is what a node announces, ``Sightings`` the table of what was heard.""",
    "cluster.mdns": """mDNS: announces this node or a pairing PIN on the LAN, and finds others.""",
    "cluster.peer_addresses": "Addresses of peers: those the user names, and those that members tell.",
    "cluster.profiles": """What a machine is and how busy it is, and how fast a link is.

``status`` imports this: nothing slow comes here.""",
    "cluster.link_probe": "Measures the speed of a link the way tensors use it: new port, sealed records.",
    "cluster.link_plan": """Which links to measure, one after the other, and the ring that follows.

``LinkProber`` measures those of this node; ``ClusterGraph`` holds what all have told.""",
    "cluster.ring_search": """ring_order computes the order of nodes whose slowest hop is as fast as possible.

Exact for few nodes, a good one for many. Pure.""",
    "cluster.agent_hello": """``AgentHello``, the first message between agents, and the frames of all messages.""",
    "cluster.node_state": "``NodeState``: what a node tells all others about itself in a view.",
    "cluster.local_requests": """Requests of local processes to their agent, and the agent's replies.

The names of these classes are their tags on the wire: they never change.""",
    "cluster.agent_config": """``AgentConfig``: the settings of an agent; ``ResidentRecord``: where one is found.""",
    "cluster.agent_options": """What ``--help`` shows of agents: their port and the profiles of failure detection.

Nothing slow comes here, not even msgspec.""",
    "cluster.agent_process": """``AgentProcess``: an agent started and owned by this process, by a socket.""",
    "cluster.agent_client": """``AgentClient``: requests to an agent of this machine over a local socket.""",
    "cluster.resident_agent": """The resident agent of this machine: finding, using, following and ending it.""",
    "cluster.peer_connection": """``PeerConnection``: an authenticated connection between two agents.

``connect`` dials, ``Acceptor`` accepts and refuses strangers: a stranger's first packet
meets it.""",
    "cluster.membership_runner": """``MembershipRunner``: runs the membership machine over one link per member.""",
    "cluster.peer_dialer": """``PeerDialer``: keeps links to all nodes that can be found, however they are found.

By mDNS, named by the user, told by members (``PeerDirectory``), or by a coordinator.""",
    "cluster.status_query": """What agents know, for commands that take no part: snapshots and numbers.""",
    "cluster.agent_core": """``AgentCore``: connects the parts of an agent and runs them on one event loop.""",
    "cluster.agent_main": """Entry point of the agent process: one per node, separate from the workers, no torch.

``python -m ringleader.cluster.agent_main`` is started by ``agent_process`` and lives as
long as the socket to its parent; a resident agent lives on. It finds the other nodes,
maintains the membership, measures links and forms the rounds of local jobs.""",
    "cluster.agent_requests": """What an agent does for local processes and for other agents, by purpose.""",
    "cluster.builtin_services": """The services of every agent: its events, its numbers, the permission for jobs.""",
    "cluster.event_log": """``EventLog``: what happened in the cluster, also that it was split.""",
    "cluster.local_node": """How this node describes itself to others, and what they have told of themselves.""",
    "cluster.rank_assignment": """Rank assignment: which nodes train together, and with which ranks. Pure.

All nodes compute it alike from the view. In the order of this file: the assignment, who
wants to take part, who is rank 0, the order of the ring, what must be equal on all
machines, the admission to a run that survives losses, what a worker then learns.""",
    "cluster.rounds": """``Jobs``: the jobs that processes of this node take part in, and their rounds.""",
    "cluster.membership.membership_messages": """Members, views, the messages between members, and the machine's events.""",
    "cluster.membership.peer_table": """PeerTable decides which peers are alive, and which life of a node counts.""",
    "cluster.membership.view_agreement": """Who leads, and how a view comes into force: election, proposal, freeze, install.""",
    "cluster.coordinator": """The gRPC coordinator: workers find each other where multicast does not work.""",
    "cluster.coordinator.v1": "Messages and stubs of the coordinator, generated from ``proto/``.",
    "cluster.coordinator.coordinator_registry": """Registry is the state of a coordinator: events in, replies and actions out. Pure.""",
    "cluster.coordinator.coordinator_server": """CoordinatorServer: the gRPC server with all its services.""",
    "cluster.coordinator.coordinator_client": """The worker's side of a coordinator: registers, sends heartbeats, watches peers.""",
}

MOVES = {
    # finding
    "cluster.mdns": ["discovery.mdns", "discovery.pairing_announcement", "discovery.multicast"],
    "cluster.sightings": ["discovery.sighting", "discovery.record"],
    "cluster.multicast_check": ["discovery.multicast_check"],
    "cluster.peer_addresses": ["discovery.static_peers", "node.protocol.node_addresses"],
    # machines and links
    "cluster.interfaces": ["topology.interfaces"],
    "cluster.profiles": [
        "topology.node_profile",
        "topology.machine_load",
        "topology.link_profile",
        "topology.interface_kind",
    ],
    "cluster.link_probe": ["node.peering.link_probe", "topology.link_speed", "node.protocol.probe_port"],
    "cluster.link_plan": [
        "node.peering.link_plan",
        "node.peering.link_prober",
        "topology.cluster_graph",
        "topology.mlx_hostfile",
    ],
    "cluster.ring_search": [
        "topology.ring_order",
        "topology.hop_table",
        "topology.exact_ring_search",
        "topology.heuristic_ring_search",
    ],
    # what is said
    "cluster.agent_hello": ["node.protocol.hello", "node.protocol.framing"],
    "cluster.node_state": ["virtual.lineage_name", "node.protocol.job_failure", "node.protocol.node_state"],  # in this order: msgspec evaluates annotations on loading
    "cluster.local_requests": ["node.protocol.local_requests", "node.protocol.snapshot", "node.protocol.run_peers"],
    # connections between agents
    "cluster.peer_connection": [
        "node.peering.peer_connection",
        "node.peering.connect",
        "node.peering.acceptor",
        "node.peering.peer_authentication",
        "node.peering.tls_refusals",
    ],
    "cluster.membership_runner": ["node.peering.membership_runner", "node.peering.control_links"],
    "cluster.peer_dialer": [
        "node.peering.peer_dialer",
        "node.agent.peer_directory",
        "node.peering.coordinator_link",
    ],
    # the agent
    "cluster.agent_main": [
        "node.agent.process",
        "node.agent.load_services",
        "node.agent.build_snapshot",
        "node.agent.warm_runs",
    ],
    "cluster.agent_core": [
        "node.agent.agent_core",
        "node.agent.agent_identity",
        "node.agent.coordinator_setup",
        "node.agent.background_tasks",
    ],
    "cluster.agent_requests": [
        "node.agent.request_handler",
        "node.agent.job_client",
        "node.agent.services",
        "node.agent.service_stream",
        "node.agent.status_socket",
        "node.agent.local_user",
    ],
    "cluster.builtin_services": [
        "node.agent.event_service",
        "node.agent.permission_service",
        "node.agent.metrics_service",
    ],
    "cluster.event_log": ["node.agent.event_log", "node.agent.split_reporter"],
    "cluster.local_node": [
        "node.agent.local_node",
        "node.agent.job_reports",
        "node.agent.view_state",
        "node.agent.peer_clocks",
    ],
    # who trains with which rank
    "cluster.rank_assignment": [
        "node.agent.rank_assignment",
        "node.agent.applicants",
        "node.agent.job_seniority",
        "node.agent.coordinator_order",
        "node.agent.fingerprint_check",
        "node.agent.run_admission",
        "node.agent.round_entry",
    ],
    "cluster.rounds": [
        "node.agent.jobs",
        "node.agent.job",
        "node.agent.round_outcome",
        "node.agent.waiting_report",
        "node.agent.run_workers",
        "node.agent.process_watch",
        "node.agent.round_stores",
        "node.agent.store_tunnel",
    ],
    # for processes that start or ask an agent
    "cluster.agent_options": ["node.peering.membership_profiles", "node.protocol.agent_port"],
    "cluster.agent_config": ["node.protocol.agent_config", "node.protocol.resident_record"],
    "cluster.agent_settings": ["node.launch.agent_settings"],
    "cluster.agent_process": ["node.launch.agent_process", "node.protocol.socket_handover", "virtual.can_fork"],
    "cluster.agent_client": ["node.protocol.agent_client", "node.protocol.socket_path"],
    "cluster.agent_peers": ["node.launch.agent_peers"],
    "cluster.resident_agent": ["node.launch.resident_agent", "node.launch.resident_events"],
    "cluster.status_query": [
        "node.peering.status_query",
        "node.peering.idle_status",
        "node.peering.metrics_query",
    ],
    # membership, pure
    "cluster.membership.membership_config": ["membership.config"],
    "cluster.membership.membership_messages": ["membership.member", "membership.messages", "membership.events"],
    "cluster.membership.peer_table": [
        "membership.peer_table",
        "membership.peer",
        "membership.probation",
        "membership.health_report",
    ],
    "cluster.membership.view_agreement": [
        "membership.proposer",
        "membership.election",
        "membership.view_change",
    ],
    "cluster.membership.membership_machine": ["membership.state_machine", "membership.heartbeats"],
    # the coordinator, an extra: gRPC
    "cluster.coordinator": ["coordinator"],
    "cluster.coordinator.coordinator_registry": [
        "coordinator.registry.state_machine",
        "coordinator.registry.job_state",
        "coordinator.registry.checkpoints",
        "coordinator.registry.records",
        "coordinator.registry.events",
        "coordinator.registry.limits",
    ],
    "cluster.coordinator.coordinator_client": [
        "coordinator.client.session",
        "coordinator.client.channel",
        "coordinator.client.peer_list",
        "coordinator.client.unavailable",
        "coordinator.grpc_tls",
    ],
    "cluster.coordinator.coordinator_server": [
        "coordinator.server.server",
        "coordinator.server.listen_address",
        "virtual.server_credentials",
        "coordinator.server.service",
        "coordinator.server.peer_feed",
        "coordinator.server.registry_runner",
    ],
    "cluster.coordinator.registry_file": ["coordinator.server.state_file"],
    "cluster.coordinator.grpc_health": ["coordinator.health_service"],
    "cluster.coordinator.v1.coordinator_pb2": ["coordinator.v1.coordinator_pb2"],
    "cluster.coordinator.v1.coordinator_pb2_grpc": ["coordinator.v1.coordinator_pb2_grpc"],
    # to others
    "dashboard.port_owner": ["topology.port_owner"],
    "dashboard.process_tree": ["topology.process_tree"],
}

SPLITS = {
    # the agent passes the name of a lineage on; the step protocol, above, gives it a meaning
    "virtual.lineage_name": (module_with("LineageName = "), ["LineageName"]),
    # the agent's warm process and the launcher's fork server ask the same question
    "virtual.can_fork": (module_with(r"def can_fork\("), ["can_fork"]),
    "virtual.server_credentials": ("coordinator.grpc_tls", ["server_credentials"]),
}

EDITS = {
    # ``status`` reads frames and must not import asyncio
    "node.protocol.hello": [
        ("import asyncio\nfrom enum", "from enum"),
        ("from typing import Annotated\n", "from typing import TYPE_CHECKING, Annotated\n"),
        (
            "from ringleader.node.protocol import framing\n",
            "from ringleader.node.protocol import framing\n\n"
            "if TYPE_CHECKING:\n    from asyncio import StreamReader\n",
        ),
        ("reader: asyncio.StreamReader", "reader: StreamReader"),
    ],
    # one module of services of the agent itself, with one ``install``
    "node.agent.load_services": [
        ('    "ringleader.node.agent.event_service",\n    "ringleader.node.agent.permission_service",\n',
         '    "ringleader.cluster.builtin_services",\n'),
        ('    "ringleader.node.agent.metrics_service",\n', ""),
    ],
    "node.agent.event_service": [
        (
            "from ringleader.node.agent.agent_core import AgentCore\n",
            "from ringleader.node.agent import metrics_service, permission_service\n"
            "from ringleader.node.agent.agent_core import AgentCore\n",
        ),
        (
            "def install(core: AgentCore) -> None:\n",
            "def install_all(core: AgentCore) -> None:\n"
            '    """Register all services that need no higher package."""\n'
            "    install(core)\n"
            "    permission_service.install(core)\n"
            "    metrics_service.install(core)\n\n\n"
            "def install(core: AgentCore) -> None:\n",
        ),
    ],
    # an agent knows nothing of the backend but how releases are written
    "node.agent.fingerprint_check": [
        ("from ringleader.backend.torch_release import minor\n", ""),
        (
            "def differences(",
            'def minor(version: str) -> str:\n    """Return "2.13" for "2.13.0+cpu"."""\n'
            '    return ".".join(version.split(".")[:2])\n\n\ndef differences(',
        ),
    ],
}

RENAMES = {
    # finding
    "discovery.multicast.PORT": "MDNS_PORT",
    "discovery.multicast.listen": "listen_for_mdns",
    "discovery.pairing_announcement.SERVICE": "PAIRING_SERVICE",
    "discovery.record.encode": "encode_record",
    "discovery.record.decode": "decode_record",
    "discovery.record.sign": "sign_record",
    "discovery.record.is_genuine": "is_record_genuine",
    "discovery.static_peers.parse": "parse_peers",
    "node.protocol.node_addresses.MAX_ADDRESSES": "MAX_NODE_ADDRESSES",
    # machines and links
    "topology.interface_kind.kind_of": "interface_kind_of",
    "topology.node_profile.measure": "measure_profile",
    "topology.node_profile.encode": "encode_profile",
    "topology.node_profile.decode": "decode_profile",
    "topology.node_profile.clean": "printable_text",
    "topology.cluster_graph.Node": "GraphNode",
    "topology.heuristic_ring_search._walk": "_search_path",
    "node.peering.link_probe.measure": "measure_link",
    "node.peering.link_plan.ring_order": "measured_ring",
    "node.peering.link_plan.to_measure": "links_to_measure",
    # what is said
    "node.protocol.framing.encode": "encode_body",
    "node.protocol.framing.frame": "frame_body",
    "node.protocol.framing.pack": "pack_frame",
    "node.protocol.framing.read": "read_frame",
    "node.protocol.framing.write": "write_frames",
    "node.protocol.framing.MAX_BYTES": "MAX_FRAME_BYTES",
    "node.protocol.framing.PREFIX_BYTES": "FRAME_PREFIX_BYTES",
    "node.protocol.hello.PROTOCOL": "AGENT_PROTOCOL",
    "node.protocol.node_state.encode": "encode_node_state",
    "node.protocol.node_state.decode": "decode_node_state",
    "node.protocol.node_state.decode_all": "decode_node_states",
    "node.protocol.job_failure.clean": "failure_text",
    "node.protocol.job_failure.MAX_ERROR": "MAX_FAILURE_ERROR",
    "node.protocol.job_failure.MAX_LINE": "MAX_FAILURE_LINE",
    "node.protocol.job_failure.MAX_LINES": "MAX_FAILURE_LINES",
    "node.protocol.local_requests.EVENTS": "EVENTS_SERVICE",
    "node.protocol.local_requests.PERMISSION": "PERMISSION_SERVICE",
    "node.protocol.local_requests.validate": "validate_request",
    "node.protocol.agent_client.AGENT": "LOCAL_AGENT",
    "node.protocol.resident_record.LOG": "AGENT_LOG",
    "node.protocol.resident_record.read_record": "read_resident_record",
    "node.protocol.resident_record.write_record": "write_resident_record",
    "node.protocol.resident_record.remove_record": "remove_resident_record",
    "node.protocol.agent_config.CONFIG": "CONFIG_DECODER",
    "node.launch.resident_agent.why_not": "why_resident_is_unfit",
    "node.launch.resident_agent.differing": "differing_options",
    "node.launch.resident_agent.as_resident": "resident_config",
    "node.peering.metrics_query.METRICS": "METRICS_SERVICE",
    "node.peering.metrics_query.QUERY_S": "METRICS_QUERY_S",
    # connections
    "node.peering.connect.connect": "connect_to_node",
    "node.peering.peer_authentication.authenticate": "authenticate_peer",
    # the agent
    "node.agent.event_service.install_all": "install",
    "node.agent.event_service.install": "install_events",
    "node.agent.permission_service.install": "install_permission",
    "node.agent.metrics_service.install": "install_metrics",
    "node.agent.event_log.Kind": "EventKind",
    # who trains with which rank
    "node.agent.rank_assignment.is_stale": "is_round_stale",
    "node.agent.rank_assignment.patience_s": "waiting_patience_s",
    "node.agent.fingerprint_check.differences": "fingerprint_differences",
    "node.agent.fingerprint_check.explain": "explain_differences",
    "node.agent.fingerprint_check.warnings": "release_warnings",
    "node.agent.fingerprint_check.minor": "minor_release",
    "node.agent.job_seniority.describe": "names_and_ids",
    "node.agent.round_entry.enter": "describe_round",
    "node.agent.round_entry.warnings": "round_warnings",
    "node.agent.run_admission.admit": "admit_to_run",
    # membership
    "membership.messages.encode": "encode_message",
    "membership.messages.decode": "decode_message",
    # the coordinator
    "coordinator.client.unavailable.BROKE": "CONNECTION_BROKE",
    "coordinator.client.unavailable.reason": "why_unavailable",
    "coordinator.client.unavailable.is_about_trust": "is_trust_refusal",
    "coordinator.server.service._REASONS": "_DEPARTURE_REASONS",
    "coordinator.server.listen_address._REASONS": "_LISTEN_TROUBLES",
    "coordinator.server.service.Context": "CallContext",
    "coordinator.server.service.render": "render_changes",
}

# Wished for: needs the hand work named in the report (AgentClient's methods, ResidentAgent, one class of peering)
FACE = {
    **dict.fromkeys(("Member", "Members", "View", "ViewId", "NO_VIEW", "Order", "by_seniority", "MAX_PAYLOAD_BYTES", "MembershipConfig",
                     "FreezeView", "HealthChanged", "KeyCloned", "Split", "LineageName", "MembershipRunner", "RunnerOptions", "RedialPolicy",
                     "PeerConnection", "HandshakeContext", "Address", "Purpose", "AgentHello", "AGENT_PROTOCOL", "connect_to_node",
                     "Acceptor", "PeerDialer", "PeerDirectory", "StaticPeers", "parse_peers", "AgentPeers", "RunPeers"), "elastic"),
    **dict.fromkeys(("AgentClient", "AgentConfig", "agent_config", "AgentProcess", "EnterJob", "RoundEntered", "RoundStatus", "JobFailure",
                     "JobFingerprint", "RequestFailed", "can_fork", "start_with_socket", "take_socket", "serve_health"), "launch, cli run"),
    **dict.fromkeys(("AgentCore", "ServiceStream", "Snapshot", "NodeRow", "ResidentRecord", "find_resident", "connect_to_resident",
                     "run_directory", "MachineLoad", "measure_load"), "jobs, dashboard"),
    **dict.fromkeys(("query_status", "query_metrics", "run_resident", "MembershipProfile", "CoordinatorServer"), "cli"),
}
