"""Every problem in the facts becomes one finding, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_interface
from typing import Any

import pytest

from ringleader.discovery.multicast import DiscoveryUnavailable, UnavailableReason
from ringleader.discovery.multicast_check import MulticastReport, SeenNode
from ringleader.discovery.record import RecordRefusal
from ringleader.discovery.static_peers import ResolvedPeer, StaticPeer
from ringleader.doctor import candidates
from ringleader.doctor.diagnose import diagnose
from ringleader.doctor.facts import (
    Address,
    Candidate,
    Descriptors,
    DialOutcome,
    DialResult,
    Facts,
    LinkMeasurement,
    LinkOutcome,
    SharedMemory,
    Source,
    TakenPort,
)
from ringleader.doctor.finding import TITLES, Code, Finding, Severity
from ringleader.doctor.firewall_command import Firewall, FirewallKind
from ringleader.doctor.probe_address import clock_ahead_s
from ringleader.doctor.report import checks, conclusion
from ringleader.ids import Incarnation, NodeId
from ringleader.node.protocol.agent_port import AGENT_PORT
from ringleader.node.protocol.snapshot import (
    ClusterEvent,
    HealthCounts,
    NodeRow,
    Snapshot,
)
from ringleader.topology.interfaces import Interface, InterfaceKind
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.port_owner import PortOwner

OURS, BOB, CAT = NodeId("o" * 52), NodeId("b" * 52), NodeId("c" * 52)
ETH0 = Interface(
    name="eth0",
    kind=InterfaceKind.ETHERNET,
    addresses=(ip_interface("10.0.0.1/24"), ip_interface("fd00::1/64")),
)
ETH1 = replace(ETH0, name="eth1", addresses=(ip_interface("10.9.0.1/24"),))
WLAN0 = replace(ETH0, name="wlan0", addresses=(ip_interface("10.0.0.77/24"),))
GIGABIT = LinkMeasurement(LinkOutcome.MEASURED, LinkProfile(2e-4, 118e6, 117e6))


def dial(
    address: Address,
    outcome: DialOutcome = DialOutcome.REACHED,
    **more: Any,  # noqa: ANN401
) -> DialResult:
    known: dict[str, Any] = {}
    if outcome is DialOutcome.REACHED:
        known = {
            "node": BOB,
            "incarnation": Incarnation("1"),
            "name": "bob",
            "version": "1.0",
            "protocol": 1,
            "clock_ahead_s": 0.01,
        }
    return DialResult(address=address, outcome=outcome, **{**known, **more})


def candidate(
    outcome: DialOutcome = DialOutcome.REACHED,
    *,
    source: Source = Source.SEEN,
    address: Address = ("10.0.0.2", 7001),
    **more: Any,  # noqa: ANN401
) -> Candidate:
    """Return a healthy node on our LAN, with changes."""
    of_visit = {k: more.pop(k) for k in list(more) if k in DialResult.__slots__}
    is_good = outcome is DialOutcome.REACHED
    usual = {
        "is_heard": source is Source.SEEN,
        "is_answering": source is Source.SEEN,
        "link": GIGABIT if is_good else None,
    }
    return Candidate(
        addresses=(address,),
        sources=frozenset({source}),
        dials=(dial(address, outcome, **of_visit),),
        **{**usual, **more},
    )


def cat(**more: Any) -> Candidate:  # noqa: ANN401
    named = {"node": CAT, "incarnation": Incarnation("2"), "name": "cat"}
    return candidate(address=("10.0.0.3", 7002), **{**named, **more})


def stranger() -> Candidate:
    """Return a node with another secret, which is not dialled."""
    addresses = (("10.0.0.9", 7001),)
    return Candidate(
        addresses=addresses, sources=frozenset({Source.FOREIGN}), is_heard=True
    )


def probe(**more: Any) -> MulticastReport:  # noqa: ANN401
    return MulticastReport(interface="eth0", **{"loops_back": True, **more})


def facts(*candidates: Candidate, **more: Any) -> Facts:  # noqa: ANN401
    """Return the facts of a healthy machine, with changes."""
    usual: dict[str, Any] = {
        "name": "tin",
        "version": "1.0",
        "protocol": 1,
        "cluster": '"home" (abcd-efgh)',
        "own": frozenset({OURS}),
        "chosen": (ETH0,),
        "multicast": (probe(),),
        "descriptors": (Descriptors("a process started here", 10, 1024),),
        "memory": SharedMemory("/dev/shm", 8 << 30, 8 << 30),
    }
    return Facts(**{**usual, "candidates": candidates, **more})


def only(found: Facts) -> Finding:
    """Return the only finding."""
    findings = diagnose(found)
    assert len(findings) == 1, [f.text for f in findings]
    return findings[0]


ALL_HEALTHY = HealthCounts(
    total=1,
    healthy=1,
    suspect=0,
    dead=0,
    unknown=0,
    percentage=100.0,
    is_healthy=True,
)


def snapshot(**more: Any) -> Snapshot:  # noqa: ANN401
    usual: dict[str, Any] = {
        "cluster": "home",
        "node": BOB,
        "epoch": 1,
        "leader": BOB,
        "ring": [],
        "nodes": [],
        "health": ALL_HEALTHY,
        "troubles": [],
        "rejected": 0,
        "pid": 1,
        "uptime_s": 1.0,
    }
    return Snapshot(**{**usual, **more})


def row(node: NodeId, name: str, **more: Any) -> NodeRow:  # noqa: ANN401
    usual: dict[str, Any] = {
        "health": "healthy",
        "is_leader": False,
        "is_here": False,
        "in_view": True,
        "address": "",
        "latency_s": None,
        "clock_ahead_s": None,
        "version": "1.0",
        "profile": None,
        "links": {},
        "jobs": [],
    }
    return NodeRow(node=node, name=name, **{**usual, **more})


# -- health ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found",
    [
        facts(),
        facts(
            multicast=(
                probe(),
                probe(
                    trouble=DiscoveryUnavailable(UnavailableReason.NO_SOCKET, "no IPv6")
                ),
            )
        ),
        facts(candidate(), cat()),
        facts(stranger(), cat()),
        facts(candidate(is_here=True, is_heard=False, link=None)),
        facts(candidate(link=LinkMeasurement(LinkOutcome.SKIPPED))),
        facts(candidate(DialOutcome.NO_TIME)),
        facts(chosen=(ETH0, ETH1)),
        facts(candidate(address=("fd00::2", 7001)), chosen=(ETH0, WLAN0)),
        facts(memory=None, descriptors=()),
    ],
    ids=[
        "alone",
        "IPv6 is half there",
        "three machines",
        "another cluster beside ours",
        "an agent here",
        "a peer is busy",
        "no time left",
        "two networks and no peer",
        "cable and Wi-Fi in one network",
        "Windows",
    ],
)
def test_a_healthy_cluster_gives_no_finding(found: Facts) -> None:
    assert diagnose(found) == []
    assert all(check.is_ok for check in checks(found, []))


def test_being_alone_is_mentioned_and_no_finding() -> None:
    nodes = next(c for c in checks(facts(), []) if c.name == "nodes")
    assert nodes.is_ok
    assert "no other node found" in nodes.text


def test_every_code_has_a_title_and_a_line_of_its_own() -> None:
    assert TITLES.keys() == set(Code)
    for code in Code:
        looked_at = checks(facts(), [Finding(code, "", "")])
        assert sum(not check.is_ok for check in looked_at) == 1, code


# -- the machine -----------------------------------------------------------------------


def test_a_machine_with_only_a_vpn_names_it_and_how_to_select_it() -> None:
    tun0 = replace(ETH0, name="tun0", kind=InterfaceKind.VPN)
    docker0 = replace(ETH0, name="docker0", kind=InterfaceKind.VIRTUAL)
    refused = ((tun0, "is a VPN by its name"), (docker0, "is virtual by its name"))
    named = candidate(DialOutcome.NO_ROUTE, source=Source.NAMED)
    finding = only(facts(named, chosen=(), refused=refused, multicast=()))
    assert finding.code is Code.ONLY_VIRTUAL
    assert "tun0 is a VPN" in finding.text
    assert "docker0 is virtual" in finding.text
    assert "--interface tun0" in finding.mend


def test_a_machine_without_any_network_is_told_so() -> None:
    wlan0 = replace(ETH0, name="wlan0", is_up=False)
    finding = only(facts(chosen=(), refused=((wlan0, "is down"),), multicast=()))
    assert finding.code is Code.ONLY_VIRTUAL
    assert "wlan0 is down" in finding.text
    assert "--interface" not in finding.mend


def test_unused_interfaces_are_told_by_reason_and_all_of_them_when_asked() -> None:
    tun0 = replace(ETH0, name="tun0", kind=InterfaceKind.VPN)
    veths = [replace(ETH0, name=f"veth{n}", kind=InterfaceKind.VIRTUAL) for n in "abc"]
    refused = (*((each, "is virtual") for each in veths), (tun0, "is a VPN"))
    short, found = {}, facts(refused=refused)
    for is_verbose in (False, True):
        lines = checks(found, (), is_verbose=is_verbose)
        short[is_verbose] = next(c.text for c in lines if c.name == "interfaces")
    assert short[False].endswith("not used: vetha is virtual (2 more); tun0 is a VPN")
    assert short[True].endswith("vethb is virtual; vethc is virtual; tun0 is a VPN")
    alone = replace(found, chosen=())
    finding, *_ = diagnose(alone)
    assert "vetha is virtual (2 more)" in finding.text
    lines = checks(alone, [finding])
    assert not any("veth" in line.text for line in lines), "once is enough"


def test_a_taken_port_names_the_program_and_is_no_loss_of_multicast() -> None:
    trouble = DiscoveryUnavailable(
        UnavailableReason.PORT_TAKEN, "another program holds UDP port 5353"
    )
    taken = TakenPort(5353, "udp", PortOwner(17, "dnsmasq"), trouble.text)
    finding = only(facts(taken=(taken,), multicast=(probe(trouble=trouble),)))
    assert finding.code is Code.PORT_TAKEN
    assert "dnsmasq (process 17)" in finding.text


def test_a_taken_port_of_an_unknown_program_is_named_too() -> None:
    taken = TakenPort(7001, "tcp", None, "port 7001 is already in use")
    finding = only(facts(taken=(taken,)))
    assert finding.code is Code.PORT_TAKEN
    assert "7001 is already in use" in finding.text


@pytest.mark.parametrize(
    ("used", "limit", "is_short"),
    [(10, 1024, False), (128, 256, False), (129, 256, True), (60, 64, True)],
)
def test_descriptors_are_short_when_few_are_free(
    used: int, limit: int, is_short: bool
) -> None:
    agent = Descriptors("the agent, process 9", used, limit)
    found = diagnose(facts(descriptors=(Descriptors("here", 5, 1024), agent)))
    assert [f.code for f in found] == [Code.FEW_DESCRIPTORS] * is_short
    assert all("the agent, process 9" in f.text for f in found)


def test_a_dial_without_a_descriptor_is_reported_as_few_descriptors_only() -> None:
    finding = only(facts(candidate(DialOutcome.NO_DESCRIPTOR)))
    assert finding.code is Code.FEW_DESCRIPTORS


def test_little_shared_memory_is_named() -> None:
    finding = only(facts(memory=SharedMemory("/dev/shm", 64 << 20, 64 << 20)))
    assert finding.code is Code.LITTLE_SHARED_MEMORY
    assert "64 MiB" in finding.text
    assert "--shm-size" in finding.mend
    broken = SharedMemory("", 0, 0, "no memory can be shared")
    assert only(facts(memory=broken)).code is Code.LITTLE_SHARED_MEMORY


def test_a_machine_in_no_cluster_is_told_to_join_one() -> None:
    finding = only(facts(stranger(), cluster="", own=frozenset()))
    assert finding.code is Code.NO_CLUSTER
    assert "ringleader join" in finding.mend


def test_an_agent_that_is_stuck_here_is_told_once() -> None:
    here = candidate(DialOutcome.STALLED, is_here=True)
    finding = only(facts(here, agent_trouble="silent for 2 s"))
    assert finding.code is Code.UNREACHABLE
    assert "tin" in finding.text


# -- multicast -------------------------------------------------------------------------


def test_a_named_peer_that_works_and_is_never_heard_means_no_multicast() -> None:
    bob = candidate(source=Source.NAMED)
    called = probe(answered_directly={"10.0.0.2"})
    finding = only(facts(bob, multicast=(called,)))
    assert finding.code is Code.NO_MULTICAST
    assert "bob" in finding.text
    assert "asked directly" in finding.text
    assert "`ringleader run --peers 10.0.0.2:7001 script.py`" in finding.mend
    assert "on 10.0.0.2 itself `ringleader run --port 7001" in finding.mend
    usual = candidate(source=Source.NAMED, address=("10.0.0.2", AGENT_PORT))
    mend = only(facts(usual, multicast=(called,))).mend
    assert f"--peers 10.0.0.2:{AGENT_PORT} script.py`" in mend
    assert "--port" not in mend, "it has this port in the next run, too"


def test_nodes_with_a_coordinator_need_no_multicast_but_the_coordinator() -> None:
    bob = candidate(source=Source.NAMED)
    silent = probe(answered_directly={"10.0.0.2"})
    found = snapshot(coordinator="10.0.0.9:7070", coordinator_rank=1)
    assert diagnose(facts(bob, multicast=(silent,), agents=(found,))) == []
    trouble = "coordinator 10.0.0.9:7070 does not answer since 14:03:11: refused"
    lost = snapshot(coordinator="10.0.0.9:7070", coordinator_trouble=trouble)
    finding = only(facts(bob, multicast=(silent,), agents=(lost, lost)))
    assert finding.code is Code.COORDINATOR_LOST
    assert "10.0.0.9:7070 does not answer since 14:03:11" in finding.text


def test_a_peer_beyond_a_router_need_not_be_heard() -> None:
    bob = candidate(source=Source.NAMED, address=("192.168.7.2", 7001))
    assert diagnose(facts(bob)) == []


def test_what_a_peer_reports_about_its_discovery_is_passed_on() -> None:
    shot = snapshot(troubles=["no discovery: UDP port 5353 is held; name the others"])
    bob = candidate(source=Source.NAMED, snapshot=shot)
    assert "UDP port 5353 is held" in only(facts(bob)).text


def test_a_firewall_that_swallows_our_own_multicast_is_named() -> None:
    finding = only(facts(multicast=(probe(loops_back=False),)))
    assert finding.code is Code.NO_MULTICAST
    assert "this machine" in finding.text


def test_an_interface_that_takes_no_multicast_is_named() -> None:
    trouble = DiscoveryUnavailable(
        UnavailableReason.NO_SOCKET, "eth0 takes no multicast: no such device"
    )
    finding = only(facts(multicast=(probe(trouble=trouble, loops_back=False),)))
    assert finding.code is Code.NO_MULTICAST
    assert "no such device" in finding.text


# -- reaching others -------------------------------------------------------------------


def test_a_silent_port_of_a_host_that_answers_is_blocked_and_nothing_else() -> None:
    finding = only(facts(candidate(DialOutcome.SILENT)))
    assert finding.code is Code.BLOCKED_PORT
    assert "10.0.0.2:7001" in finding.text
    assert "TCP port 7001" in finding.mend
    assert "ufw allow proto tcp from 10.0.0.0/24 to any port 7001" in finding.mend


def test_a_silent_port_on_our_lan_is_blocked_even_if_nothing_else_is_heard() -> None:
    finding = only(facts(candidate(DialOutcome.SILENT, source=Source.NAMED)))
    assert finding.code is Code.BLOCKED_PORT


def test_silence_beyond_a_router_may_be_anything() -> None:
    far = candidate(
        DialOutcome.SILENT, source=Source.NAMED, address=("192.168.7.2", 7001)
    )
    assert only(facts(far)).code is Code.UNREACHABLE


def test_a_host_that_is_heard_but_answers_nothing_is_isolated_not_blocked() -> None:
    finding = only(facts(candidate(DialOutcome.SILENT, is_answering=False)))
    assert finding.code is Code.UNREACHABLE
    assert "announces itself" in finding.text
    assert "isolation" in finding.mend


def test_blocked_new_ports_are_reported_although_the_agent_answers() -> None:
    finding = only(facts(candidate(link=LinkMeasurement(LinkOutcome.BLOCKED))))
    assert finding.code is Code.BLOCKED_PORT
    assert "bob" in finding.text
    assert "--tensor-port 29600-29603" in finding.mend


def test_ports_that_the_user_has_chosen_are_named_in_the_rule() -> None:
    blocked = candidate(link=LinkMeasurement(LinkOutcome.BLOCKED))
    finding = only(facts(blocked, tensor_ports=range(4000, 4003)))
    assert "any port 4000:4002" in finding.mend
    assert "--tensor-port" not in finding.mend


def test_the_firewall_of_this_machine_is_named_with_its_rule() -> None:
    found = facts(tensor_ports=range(4000, 4003), firewall=Firewall(FirewallKind.UFW))
    (line,) = [c.text for c in checks(found, []) if c.name == "firewall"]
    assert "from 10.0.0.0/24 to any port 29471,4000:4002" in line


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (DialOutcome.NO_HOST, "no machine answers"),
        (DialOutcome.REFUSED, "refuses"),
        (DialOutcome.STALLED, "does not answer"),
        (DialOutcome.STRANGE, "not ringleader"),
    ],
)
def test_a_peer_that_is_off_or_odd_is_not_reachable(
    outcome: DialOutcome, word: str
) -> None:
    finding = only(facts(candidate(outcome, source=Source.NAMED)))
    assert finding.code is Code.UNREACHABLE
    assert "10.0.0.2:7001" in finding.text
    assert word in finding.text


def test_a_name_without_an_address_is_reported() -> None:
    hint = candidates.from_named_peers(
        [ResolvedPeer(StaticPeer("bbo", 7001), (), "bbo: unknown name")]
    )[0]
    named = Candidate(
        addresses=(),
        sources=frozenset({Source.NAMED}),
        known_as=hint.known_as,
        trouble=hint.trouble,
    )
    finding = only(facts(named))
    assert finding.code is Code.UNREACHABLE
    assert "bbo:7001" in finding.text
    assert "unknown name" in finding.text


def test_one_address_of_several_is_enough() -> None:
    bob = candidate()
    more = dial(("fd00::2", 7001), DialOutcome.SILENT)
    both = replace(bob, dials=(more, *bob.dials))
    assert diagnose(facts(both)) == []


def test_a_peer_seen_in_no_network_of_ours_is_on_another_subnet() -> None:
    seen = Candidate(
        addresses=(("192.168.7.2", 7001),),
        sources=frozenset({Source.SEEN}),
        is_heard=True,
    )
    finding = only(facts(seen))
    assert finding.code is Code.UNREACHABLE
    assert "192.168.7.2" in finding.text
    assert "10.0.0.0/24" in finding.text


@pytest.mark.parametrize(
    ("own", "address", "theirs", "ours"),
    [
        ("10.0.0.1/24", ("fd00::2", 7001), "IPv6", "IPv4"),
        ("fd00::1/64", ("10.0.0.2", 7001), "IPv4", "IPv6"),
    ],
)
def test_a_peer_of_the_other_family_is_named(
    own: str, address: Address, theirs: str, ours: str
) -> None:
    here = replace(ETH0, addresses=(ip_interface(own),))
    bob = candidate(DialOutcome.NO_ROUTE, source=Source.MEMBER, address=address)
    finding = only(facts(bob, chosen=(here,)))
    assert finding.code is Code.OTHER_FAMILY
    assert f"by {theirs} only" in finding.text
    assert f"only {ours}" in finding.text


# -- secrets and versions --------------------------------------------------------------


@pytest.mark.parametrize("outcome", [DialOutcome.FOREIGN, DialOutcome.HUNG_UP])
def test_a_named_peer_that_refuses_us_has_another_secret(
    outcome: DialOutcome,
) -> None:
    finding = only(facts(candidate(outcome, source=Source.NAMED)))
    assert finding.code is Code.WRONG_SECRET
    assert "10.0.0.2:7001" in finding.text
    assert "ringleader join" in finding.mend


def test_who_has_own_certificates_is_told_of_certificates() -> None:
    refused = candidate(DialOutcome.FOREIGN, source=Source.NAMED)
    finding = only(facts(refused, has_own_certificates=True))
    assert "does not accept the certificate of the other" in finding.text
    assert "certificates of one authority" in finding.mend


def test_a_node_that_announces_our_secret_and_hangs_up_has_no_other_one() -> None:
    assert only(facts(candidate(DialOutcome.HUNG_UP))).code is Code.UNREACHABLE


def test_strangers_are_a_finding_only_if_no_node_of_ours_is_known() -> None:
    assert only(facts(stranger())).code is Code.WRONG_SECRET
    here = cat(is_here=True)
    assert only(facts(stranger(), here)).code is Code.WRONG_SECRET
    off = candidate(DialOutcome.NO_HOST, source=Source.NAMED, address=("10.0.0.9", 1))
    assert only(facts(stranger(), off)).code is Code.UNREACHABLE


def test_another_version_names_both() -> None:
    bob = candidate(
        DialOutcome.OTHER_VERSION, name="bob", version="2.0", protocol=2, node=BOB
    )
    finding = only(facts(bob))
    assert finding.code is Code.OTHER_VERSION
    assert "bob" in finding.text
    assert "2.0, protocol 2" in finding.text
    assert "1.0, protocol 1" in finding.text


def test_an_unreadable_announcement_is_reported_if_no_other_node_is_known() -> None:
    seen = {"abc": SeenNode("10.0.0.2", "abc", (), RecordRefusal.OTHER_VERSION)}
    finding = only(facts(multicast=(probe(seen=seen),)))
    assert finding.code is Code.OTHER_VERSION
    assert "10.0.0.2" in finding.text
    assert diagnose(facts(cat(), multicast=(probe(seen=seen),))) == []


def test_a_version_with_an_unreadable_hello_is_reported() -> None:
    finding = only(
        facts(candidate(DialOutcome.OTHER_VERSION, text="words we know not"))
    )
    assert finding.code is Code.OTHER_VERSION
    assert "10.0.0.2:7001" in finding.text


# -- identity, clocks, subnets ---------------------------------------------------------


def test_our_own_key_on_another_machine_is_a_clone() -> None:
    finding = only(facts(candidate(node=OURS)))
    assert finding.code is Code.CLONED_IDENTITY
    assert "tin and bob" in finding.text
    assert "ringleader leave" in finding.mend


def test_two_others_with_one_key_are_clones_and_a_restart_is_none() -> None:
    other = cat(node=BOB)
    finding = only(facts(candidate(), other))
    assert finding.code is Code.CLONED_IDENTITY
    assert "10.0.0.2:7001" in finding.text
    assert "10.0.0.3:7002" in finding.text
    again = candidate(address=("10.0.0.2", 7009), incarnation=Incarnation("9"))
    assert diagnose(facts(candidate(), again)) == []


def test_clones_that_agents_noticed_are_reported_once() -> None:
    text = "two machines use the key of node cccc-cccc: was a home copied?"
    shot = snapshot(clones=[text])
    finding = only(facts(candidate(snapshot=shot), agents=(shot,)))
    assert finding.code is Code.CLONED_IDENTITY
    assert "cccc-cccc" in finding.text


def test_a_clock_that_is_off_is_named_with_both_machines() -> None:
    finding = only(facts(candidate(clock_ahead_s=-7200.0), cat()))
    assert finding.code is Code.CLOCK_SKEW
    assert finding.severity is Severity.WARNING
    assert "bob" in finding.text
    assert "2.0 hours behind that of tin" in finding.text
    assert diagnose(facts(candidate(clock_ahead_s=1.9))) == []


def test_when_all_others_agree_it_is_our_clock() -> None:
    finding = only(facts(candidate(clock_ahead_s=90.0), cat(clock_ahead_s=90.5)))
    assert finding.code is Code.CLOCK_SKEW
    assert "clock of tin is 90.0 seconds behind those of" in finding.text


@pytest.mark.parametrize(
    ("told", "asked", "heard", "ahead"),
    [(100, 99, 103, 0), (105, 99, 103, 2), (97, 99, 103, -2)],
)
def test_a_slow_answer_is_no_clock_that_is_off(
    told: float, asked: float, heard: float, ahead: float
) -> None:
    assert clock_ahead_s(told, asked, heard) == ahead


def test_a_peer_on_only_one_of_two_networks_is_told() -> None:
    finding = only(facts(candidate(), chosen=(ETH0, ETH1)))
    assert finding.code is Code.TWO_SUBNETS
    assert "eth0 (10.0.0.0/24) and eth1 (10.9.0.0/24)" in finding.text
    assert "--interface eth0" in finding.mend
    bob = candidate()
    both = replace(bob, dials=(*bob.dials, dial(("10.9.0.2", 7001))))
    assert diagnose(facts(both, chosen=(ETH0, ETH1))) == []


# -- links -----------------------------------------------------------------------------


def measured(
    out_mbit: float, in_mbit: float, latency_s: float = 2e-4
) -> LinkMeasurement:
    profile = LinkProfile(latency_s, out_mbit * 125e3, in_mbit * 125e3)
    return LinkMeasurement(LinkOutcome.MEASURED, profile)


@pytest.mark.parametrize(
    ("link", "beside", "is_slow"),
    [
        (measured(49, 900), GIGABIT, True),
        (measured(900, 49), GIGABIT, True),
        (measured(60, 60), measured(70, 70), False),
        (measured(95, 95), GIGABIT, True),
        (measured(200, 200), GIGABIT, False),
        (measured(940, 940), measured(38_000, 38_000), False),
        (measured(940, 940, latency_s=0.03), GIGABIT, True),
        (measured(940, 940, latency_s=0.01), GIGABIT, False),
        (LinkMeasurement(LinkOutcome.STALLED), GIGABIT, True),
    ],
    ids=[
        "slow there",
        "slow back",
        "all alike",
        "100 Mbit/s among gigabit",
        "Wi-Fi",
        "gigabit among Thunderbolt",
        "far away",
        "not so far",
        "hardly anything",
    ],
)
def test_which_links_are_slow(
    link: LinkMeasurement, beside: LinkMeasurement, is_slow: bool
) -> None:
    found = diagnose(facts(candidate(link=link), cat(link=beside)))
    assert [f.code for f in found] == [Code.SLOW_LINK] * is_slow
    assert all("tin and bob" in f.text for f in found)


def test_a_link_whose_measurement_fails_is_told_with_the_peer_and_the_reason() -> None:
    why = "to measure: node b is lost: bad record"
    failed = LinkMeasurement(LinkOutcome.FAILED, text=why)
    finding = only(facts(candidate(link=failed), cat()))
    assert finding.code is Code.LINK_FAILED
    assert "bob" in finding.text
    assert why in finding.text


def test_machines_in_different_places_are_not_told_to_buy_a_cable_first() -> None:
    far = only(facts(candidate(link=measured(940, 940, latency_s=0.03))))
    slow = only(facts(candidate(link=measured(40, 40))))
    assert "local steps" in far.mend
    assert "local steps" not in slow.mend


def test_a_slow_link_between_two_others_is_told_as_their_agents_measured_it() -> None:
    slow = {str(CAT): LinkProfile(1e-3, 1e6, 1e6)}
    ours = {str(OURS): LinkProfile(1e-3, 1e6, 1e6)}  # we know better ourselves
    rows = [
        row(BOB, "bob", links={**slow, **ours}),
        row(CAT, "cat"),
        row(OURS, "tin"),
    ]
    shot = snapshot(nodes=rows)
    finding = only(facts(candidate(snapshot=shot), cat(snapshot=shot)))
    assert finding.code is Code.SLOW_LINK
    assert "Between bob and cat" in finding.text


@pytest.mark.parametrize(
    "bob",
    [
        candidate(needs_small_segments=True, link=LinkMeasurement(LinkOutcome.SKIPPED)),
        candidate(link=replace(measured(20, 20), needs_small_segments=True)),
    ],
    ids=["the greeting stalls", "the transfer stalls"],
)
def test_large_packets_that_get_lost_are_mtu_trouble_and_not_a_slow_link(
    bob: Candidate,
) -> None:
    finding = only(facts(bob))
    assert finding.code is Code.MTU
    assert "bob" in finding.text


def test_troubles_that_come_together_are_all_named_the_worst_first() -> None:
    bob = candidate(clock_ahead_s=60.0, link=measured(10, 10))
    blocked = candidate(DialOutcome.SILENT, address=("10.0.0.7", 7007))
    found = diagnose(facts(bob, blocked, memory=SharedMemory("/dev/shm", 0, 1)))
    assert found[0].code is Code.BLOCKED_PORT
    assert {f.code for f in found[1:]} == {
        Code.CLOCK_SKEW,
        Code.SLOW_LINK,
        Code.LITTLE_SHARED_MEMORY,
    }


# -- leads -----------------------------------------------------------------------------


def test_only_addresses_in_our_networks_are_dialled() -> None:
    seen = SeenNode("10.0.0.2", "abc", ("10.0.0.2", "8.8.8.8"), None, 7001)
    hint = candidates.from_multicast([probe(seen={"abc": seen})], [ETH0])[0]
    assert hint.to_dial == (("10.0.0.2", 7001),)
    assert hint.source is Source.SEEN


def test_of_many_forged_announcements_few_are_shown_and_none_is_dialled() -> None:
    flood = {
        str(n): SeenNode(
            "10.0.0.9", str(n), ("10.0.0.9",), RecordRefusal.FOREIGN, 2000 + n
        )
        for n in range(60)
    }
    found = candidates.from_multicast([probe(seen=flood)], [ETH0])
    assert len(found) == candidates.MAX_FOREIGN
    assert not any(hint.to_dial for hint in found)


def test_a_host_that_answers_only_unicast_has_not_been_heard() -> None:
    seen = SeenNode("10.0.0.2", "abc", ("10.0.0.2",), None, 7001)
    called = probe(seen={"abc": seen}, answered_directly={"10.0.0.2"})
    assert candidates.heard_hosts([called]) == set()
    assert candidates.answering_hosts([called]) == {"10.0.0.2"}
    local = replace(seen, source="fe80::2")  # by IPv6, from an address nobody announces
    heard = probe(seen={"abc": local}, heard={"fe80::2"})
    assert candidates.heard_hosts([heard]) == {"fe80::2", "10.0.0.2"}


@pytest.mark.parametrize("address", ["", "bob:7001", "10.0.0.2:x", "10.0.0.2:0"])
def test_an_invalid_address_in_a_snapshot_gives_no_hint(address: str) -> None:
    assert (
        candidates.from_snapshots([snapshot(nodes=[row(BOB, "bob", address=address)])])
        == []
    )


def test_members_that_agents_know_are_dialled_unless_they_are_gone() -> None:
    rows = [
        row(BOB, "bob", address="fd00::2:7001"),
        row(CAT, "cat", address="10.0.0.3:7002", health="dead"),
    ]
    found = candidates.from_snapshots([snapshot(nodes=rows)])
    assert [hint.to_dial for hint in found] == [(("fd00::2", 7001),)]


def test_one_node_found_in_three_ways_is_one_candidate() -> None:
    seen = candidate()
    named = candidate(source=Source.NAMED, address=("fd00::2", 7001))
    member = candidate(DialOutcome.SILENT, source=Source.MEMBER)
    merged = candidates.merge([named, seen, member, cat()])
    assert len(merged) == 2
    assert merged[0].sources == {Source.SEEN, Source.NAMED, Source.MEMBER}
    assert set(merged[0].addresses) == {("10.0.0.2", 7001), ("fd00::2", 7001)}


# -- nodes that should be here ---------------------------------------------------------


def lost(node: NodeId, ago_s: float) -> ClusterEvent:
    text = "lost cat (cccc-cccc): silent for 3.5 s"
    return ClusterEvent(time_s=1000 - ago_s, kind="lost", text=text, node=node)


def agent_here(*events: ClusterEvent, **more: Any) -> Snapshot:  # noqa: ANN401
    here = row(OURS, "tin", is_here=True, jobs=["default"], **more)
    return snapshot(nodes=[here], ring=[OURS], events=list(events))


def test_a_member_that_just_died_is_a_finding() -> None:
    finding = only(facts(agents=(agent_here(lost(CAT, 20)),), now_s=1000.0))
    assert finding.code is Code.LOST_NODE
    assert finding.severity is Severity.WARNING
    assert "The agent of tin reports, 20 s ago: lost cat (cccc-cccc)" in finding.text


def test_another_agents_loss_is_told_by_its_own_clock() -> None:
    there = snapshot(nodes=[row(BOB, "bob", is_here=True)], events=[lost(CAT, 20)])
    bob = candidate(snapshot=there, clock_ahead_s=-1.0)
    finding = only(facts(bob, now_s=1000.0))
    assert "The agent of bob reports, 19 s ago" in finding.text


@pytest.mark.parametrize(
    "found",
    [
        facts(agents=(agent_here(lost(CAT, 700)),), now_s=1000.0),
        facts(cat(), agents=(agent_here(lost(CAT, 20)),), now_s=1000.0),
        facts(agents=(agent_here(lost(OURS, 20)),), now_s=1000.0),
    ],
    ids=["long ago", "it is back", "it is this machine"],
)
def test_a_loss_that_is_over_is_no_finding(found: Facts) -> None:
    assert diagnose(found) == []


@pytest.mark.parametrize(
    ("heard", "words"),
    [(frozenset(), "keep its clients apart"), ({"10.0.0.9"}, "Multicast of 1 other")],
)
def test_a_job_that_waits_alone_is_a_finding(heard: set[str], words: str) -> None:
    agents = (agent_here(waiting_jobs=["default"]),)
    finding = only(facts(agents=agents, multicast=(probe(heard=heard),)))
    assert finding.code is Code.NO_OTHER_NODE
    assert "Job default on tin waits" in finding.text
    assert words in finding.text
    assert "--peer ADDRESS" in finding.mend
    assert diagnose(facts(cat(), agents=agents)) == [], "there is another node"


def test_the_conclusion_promises_nothing_about_an_untested_network() -> None:
    assert conclusion(facts(candidate()), []) == "tin: nothing is wrong."
    alone = conclusion(facts(), [])
    assert "the network is not tested" in alone
    assert "nothing is wrong." not in alone
    troubled = facts(candidate(), agents=(snapshot(troubles=["no route"]),))
    assert "reports problems" in conclusion(troubled, [])
    found = diagnose(facts(agents=(agent_here(waiting_jobs=["default"]),)))
    assert conclusion(facts(), found) == "tin: 1 problem found."
