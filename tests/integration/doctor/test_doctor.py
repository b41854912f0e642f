"""The doctor on a virtual LAN finds each injected problem, and nothing else.

One LAN carries all troubles at once. Nodes with a trouble of their own have a cluster
of their own, so that they are only strangers to all others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ringleader.deadline import Deadline
from ringleader.identity.cluster_secret import ClusterSecret, store
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import Home
from ringleader.node.protocol.hello import PROTOCOL
from ringleader.simulation.lan import (
    VirtualHost,
    VirtualLan,
    can_make_faults,
    lan,
    long_cable,
)
from ringleader.simulation.lan.switch import RECEIVED
from tests.kit.patient_doctor import SECONDS
from tests.kit.warm_python import WarmProcess, WarmPython

IS_POSSIBLE, REASON = can_make_faults()
pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason=f"no faults here: {REASON}")

NODE = ("-m", "tests.kit.doctor_peer")
DOCTOR = "from tests.kit.patient_doctor import main; main()"
FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
"""
LITTLE_MEMORY = """
import subprocess
subprocess.run("mount -t tmpfs -o size=8m none /dev/shm".split(), check=True)
"""
AT_ONCE = 6
"""Doctors mostly wait for the network; more would compete for the two cores."""

LIMIT_S = SECONDS + 30.0
"""Limit for one examination, without the start of Python."""

PORT = 7001

# Holds the port of mDNS without sharing it, and a port that an agent should have.
HOLD_PORTS = """
import signal, socket
mdns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
mdns.bind(("", 5353))
door = socket.create_server(("", 7007))
print("ready", flush=True)
signal.pause()
"""

Report = dict[str, Any]


@dataclass(slots=True)
class Homes:
    """Home directories of users, each in a cluster with its own secret."""

    folder: Path
    _roots: dict[str, bytes] = field(default_factory=dict)

    def get(self, name: str, cluster: str = "main") -> str:
        """Return a home; it is made at the first call."""
        home = Home(self.folder / name)
        if not home.path.exists():
            root = self._roots.setdefault(cluster, os.urandom(32))
            with home.writing() as change:
                store(change, ClusterSecret(root=Secret(root), name=cluster))
        return str(home.path)

    def copy(self, name: str) -> str:
        """Copy a home with its keys."""
        path = self.folder / f"{name}-copied"
        running = shutil.ignore_patterns("run")
        shutil.copytree(self.folder / name, path, ignore=running)
        return str(path)


def wait_for(*processes: WarmProcess) -> None:
    for process in processes:
        assert process.stdout.readline() == "ready\n"


@dataclass(frozen=True, slots=True)
class Practice:
    """Nodes and doctors on the hosts of a LAN: forks of a warm interpreter."""

    python: WarmPython
    stack: ExitStack
    """Ends what was started."""

    def start(self, host: VirtualHost, *argv: str) -> WarmProcess:
        """Start a program that prints a line when it is ready; see ``wait_for``."""
        process = self.python.popen(*argv, namespace=host.name)
        self.stack.callback(process.communicate)
        self.stack.callback(process.kill)
        return process

    def start_node(self, host: VirtualHost, home: str, *odd: str) -> WarmProcess:
        """Start a real agent with the name of its home."""
        return self.start(host, *NODE, home, Path(home).name, str(PORT), *odd)

    def ask_doctor(
        self, host: VirtualHost, home: str, *args: str, before: str = ""
    ) -> tuple[str, int]:
        """Run the real command, after ``before``: what it says, and its status."""
        env = {**os.environ, "RINGLEADER_HOME": home}
        argv = ("-c", before + DOCTOR, "doctor", *args)
        process = self.python.popen(*argv, env=env, namespace=host.name)
        return process.communicate(timeout=400)[0], process.wait()

    def examine(
        self, host: VirtualHost, home: str, *args: str, before: str = ""
    ) -> Report:
        """Run the doctor on a host and return its report: all that it says."""
        said, status = self.ask_doctor(host, home, "--json", *args, before=before)
        assert said.startswith("{"), said
        report: Report = json.loads(said)
        assert status == bool(report["findings"])
        assert report["took_s"] < LIMIT_S
        return report

    def findings_of(self, host: VirtualHost, home: str) -> dict[str, str]:
        """Return code -> text."""
        return {f["code"]: f["text"] for f in self.examine(host, home)["findings"]}


@pytest.fixture
def practice(warm_python: WarmPython) -> Iterator[Practice]:
    with ExitStack() as stack:
        yield Practice(warm_python, stack)


def line(report: Report, name: str) -> str:
    """Return the text of one check of the report."""
    return str(next(c["text"] for c in report["checks"] if c["name"] == name))


# -- health ----------------------------------------------------------------------------


def test_a_healthy_lan_gives_no_finding(tmp_path: Path, practice: Practice) -> None:
    homes = Homes(tmp_path)
    with lan(hosts=3, rate="1gbit") as net:
        tin, bob, cat = net.hosts
        for number in range(3):
            tin.add_interface(f"docker{number}", f"172.{17 + number}.0.1/16")
        alone = practice.examine(tin, homes.get("tin"))
        assert alone["findings"] == []
        assert "no other node found" in line(alone, "nodes")

        others = [(bob, homes.get("bob")), (cat, homes.get("cat"))]
        wait_for(*[practice.start_node(host, home) for host, home in others])
        without_agent = practice.examine(tin, homes.get("tin"))
        wait_for(practice.start_node(tin, homes.get("tin")))
        args = ("--port", str(PORT), "--peer", f"{bob.address}:{PORT}")
        with_agent = practice.examine(tin, homes.get("tin"), *args)
        for report in (without_agent, with_agent):
            assert report["findings"] == []
            assert "bob" in line(report, "nodes")
            assert "cat" in line(report, "nodes")
        shown, status = practice.ask_doctor(tin, homes.get("tin"))
        assert status == 0
        assert "nothing is wrong" in shown
        assert "Mbit/s" in shown
        said = " ".join(shown.split())
        assert re.search(r"docker0 is virtual by its name \(\d+ more\)", said)
        assert "docker1" not in shown


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="no /dev/net/tun")
def test_a_machine_that_is_far_away_is_not_called_stalled(
    tmp_path: Path, practice: Practice
) -> None:
    """Measuring takes as many round trips as elsewhere, and these are long."""
    homes = Homes(tmp_path)
    with lan(hosts=2) as net, long_cable(*net.hosts, round_trip_s=0.1) as addresses:
        net.cut(1)
        wait_for(practice.start_node(net.hosts[1], homes.get("bob")))
        far = f"{addresses[1]}:{PORT}"
        report = practice.examine(net.hosts[0], homes.get("tin"), "--peer", far)
    assert report["findings"] == []
    assert re.search(r"bob \d+ Mbit/s, [56]\d\.\d ms", line(report, "links"))


# An agent whose job waits for another machine.
WAIT = """
import sys, time
from ringleader.deadline import Deadline
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.local_requests import EnterJob
home, name, port = sys.argv[1:]
job = EnterJob(job="night", min_nodes=2, max_nodes=2, wait_s=0, timeout_s=500)
with AgentProcess.start(AgentConfig(home=home, name=name, port=int(port))) as agent:
    print("ready", flush=True)
    agent.ask(job, Deadline.after(500))
    print("ready", flush=True)
    time.sleep(500)
"""


@pytest.mark.slow
def test_dead_multicast_and_a_dead_member_are_not_called_healthy(
    tmp_path: Path, practice: Practice
) -> None:
    homes = Homes(tmp_path)
    with lan(hosts=2, rate="1gbit") as net:
        for index in range(2):
            net.no_multicast(index)
        alone, status = practice.ask_doctor(net.hosts[0], homes.get("tin"))
        assert status == 0
        assert "the network is not tested" in " ".join(alone.split())
        nodes = []
        for host, name in zip(net.hosts, ("tin", "bob"), strict=True):
            argv = ("-c", WAIT, homes.get(name), name, str(PORT))
            nodes.append(practice.start(host, *argv))
        wait_for(*nodes)
        deadline = Deadline.after(200)
        while not (apart := practice.findings_of(net.hosts[0], homes.get("tin"))):
            assert not deadline.is_over()  # before, no job waits
        assert "Job night on tin waits" in apart.pop("no_other_node")
        assert apart == {}

        for index in range(2):
            net.mend(index)
        wait_for(*nodes)  # the round has begun
        net.cut(1)
        deadline = Deadline.after(200)
        while "lost_node" not in (
            codes := practice.findings_of(net.hosts[0], homes.get("tin"))
        ):
            assert not deadline.is_over(), codes  # before, its port is silent
        assert "lost bob" in codes.pop("lost_node")
        assert codes == {}


def test_an_invalid_peer_address_is_refused_at_once(warm_python: WarmPython) -> None:
    process = warm_python.popen("-c", DOCTOR, "doctor", "--peer", "bob:x")
    said, _ = process.communicate()
    assert process.returncode == 2
    assert "host:port" in said


def test_the_doctor_does_not_wait_for_torch() -> None:
    code = "import sys, ringleader.cli.doctor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- troubles --------------------------------------------------------------------------

NAMES = "bob tin taken vpn two slow mtu blocked newer clock six four deaf apart odd"


NODES: dict[str, tuple[str, ...]] = {
    "slow": (),
    "mtu": (),
    "blocked": (),
    "newer": (f"protocol={PROTOCOL + 1}",),
    "clock": ("clock=3600",),
    "odd": ("link=garbled",),
    "six": (),
}
"""Nodes in clusters of their own, started for the cases that need them."""


@pytest.fixture(scope="module")
def reports(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    warm_python: WarmPython,
) -> dict[str, Future[Report]]:
    """Return the doctor's report of each problem that a selected test needs."""
    params = [getattr(item, "callspec", None) for item in request.session.items]
    cases = {spec.params.get("case") for spec in params if spec} | {"taken", "none"}
    homes = Homes(tmp_path_factory.mktemp("homes"))
    names = NAMES.split()
    with lan(hosts=len(names), rate="1gbit") as net, ExitStack() as stack:
        practice = Practice(warm_python, stack)
        hosts = dict(zip(names, net.hosts, strict=True))
        make_trouble(net, hosts)
        nodes = [practice.start_node(hosts["bob"], homes.get("bob"))]
        nodes += [
            practice.start_node(hosts[name], homes.get(name, name), *odd)
            for name, odd in NODES.items()
            if name in cases or (name == "six" and "four" in cases)
        ]
        wait_for(practice.start(hosts["taken"], "-c", HOLD_PORTS), *nodes)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return {
                case: pool.submit(practice.examine, *args, **options)
                for case, (*args, options) in examinations(hosts, homes).items()
                if case in cases
            }


def make_trouble(net: VirtualLan, hosts: dict[str, VirtualHost]) -> None:
    """Inject the faults of cables, interfaces and firewalls."""
    hosts["vpn"].add_interface("tun0", "10.99.0.1/24")
    hosts["vpn"].add_interface("docker0", "172.17.0.1/16")
    hosts["vpn"].set_up(is_up=False)
    hosts["two"].add_interface("eth1", "10.88.0.1/24")
    net.slow_pair(hosts["tin"].number, hosts["slow"].number, "20mbit")
    net.drop_large(hosts["mtu"].number, over=1400)
    hosts["blocked"].block_port(PORT)
    hosts["six"].only_ipv6()
    hosts["four"].only_ipv4()
    net.no_multicast(hosts["deaf"].number)
    # A Wi-Fi that keeps its clients apart: only what is for everybody comes through.
    cable = hosts["apart"].cable()
    alone = f"protocol all u32 match ether dst {cable.mac}"
    net._switch.drop(("apart",), [(cable, RECEIVED, alone)])


def examinations(hosts: dict[str, VirtualHost], homes: Homes) -> dict[str, list[Any]]:
    """Return the arguments of each examination, the slowest first."""
    tin = hosts["tin"]
    bob = f"{hosts['bob'].address}:{PORT}"
    six = f"[{hosts['six'].address6}]:{PORT}"
    here = homes.get("tin")
    lost = homes.get("lost", "lost")
    return {
        "apart": [hosts["apart"], here, {}],
        "mtu": [tin, homes.get("tin-mtu", "mtu"), {}],
        "blocked": [tin, homes.get("tin-blocked", "blocked"), {}],
        "off": [tin, here, "--peer", "10.77.0.99:7001", {}],
        "deaf": [hosts["deaf"], here, "--peer", bob, {}],
        "odd": [tin, homes.get("tin-odd", "odd"), {}],
        "slow": [tin, homes.get("tin-slow", "slow"), {}],
        "lost": [tin, lost, {}],
        "lost-named": [tin, lost, "--peer", bob, {}],
        "newer": [tin, homes.get("tin-newer", "newer"), {}],
        "clock": [tin, homes.get("tin-clock", "clock"), {}],
        "copied": [tin, homes.copy("bob"), {}],
        "two": [hosts["two"], here, {}],
        "four": [hosts["four"], homes.get("4", "six"), "--peer", six, {}],
        "descriptors": [tin, here, {"before": FEW_DESCRIPTORS}],
        "shm": [tin, here, {"before": LITTLE_MEMORY}],
        "vpn": [hosts["vpn"], here, {}],
        "taken": [hosts["taken"], here, "--port", "7007", "--peer", bob, {}],
        "stranger": [tin, str(homes.folder / "empty"), {}],
        "none": [tin, here, {}],
    }


TROUBLES = [
    ("deaf", "no_multicast", ("bob", "eth0"), "--peers 10.77.0.1:7001"),
    ("blocked", "blocked_port", ("10.77.0.8:7001",), "TCP port 7001"),
    ("lost", "wrong_secret", ("another secret", ":7001"), "ringleader join"),
    ("lost-named", "wrong_secret", ("10.77.0.1:7001",), "ringleader join"),
    (
        "newer",
        "other_version",
        ("newer", f"protocol {PROTOCOL + 1}", f"protocol {PROTOCOL}"),
        "Upgrade",
    ),
    ("clock", "clock_skew", ("clock", "60.0 minutes ahead"), "set-ntp"),
    ("copied", "cloned_identity", ("bob", "10.77.0.1:7001"), "ringleader leave"),
    ("vpn", "only_virtual_interface", ("tun0", "docker0"), "--interface tun0"),
    ("two", "two_subnets", ("bob", "eth0 (10.77.", "eth1 (10.88."), "--interface eth0"),
    ("four", "other_address_family", ("[fd77::b]:7001", "IPv6"), "IPv6"),
    ("apart", "unreachable", ("10.77.0.1:7001", "announces itself"), "isolation"),
    ("off", "unreachable", ("10.77.0.99:7001", "no machine answers"), "on"),
    ("slow", "slow_link", ("slow", "Mbit/s"), "cable"),
    ("odd", "link_failed", ("odd", "to measure: "), "over there"),
    ("mtu", "mtu", ("mtu",), "MTU"),
    ("stranger", "no_cluster", ("in no cluster",), "ringleader init"),
    ("descriptors", "few_descriptors", ("of 48 in use",), "ulimit"),
    ("shm", "little_shared_memory", ("8 MiB",), "--shm-size"),
]
"""Case, code of the finding, words of its description, and of its fix."""
QUICK = {"blocked", "lost", "mtu", "odd", "slow", "vpn"}
"""Cases of ``make test``; the rule of each finding has its own unit tests."""


@pytest.mark.parametrize(
    ("case", "code", "words", "mend"),
    [
        pytest.param(*row, id=row[0], marks=() if row[0] in QUICK else pytest.mark.slow)
        for row in TROUBLES
    ],
)
def test_each_problem_is_found_and_nothing_else(
    reports: dict[str, Future[Report]],
    case: str,
    code: str,
    words: tuple[str, ...],
    mend: str,
) -> None:
    report = reports[case].result()
    assert [f["code"] for f in report["findings"]] == [code], report["findings"]
    finding = report["findings"][0]
    assert all(word in finding["text"] for word in words), finding
    assert mend in finding["mend"]


def test_ports_that_are_taken_are_named_with_their_holder(
    reports: dict[str, Future[Report]],
) -> None:
    report = reports["taken"].result()
    assert [f["code"] for f in report["findings"]] == ["port_taken"] * 2
    for port, finding in zip(("5353", "7007"), report["findings"], strict=True):
        assert port in finding["text"]
        assert "python" in finding["text"]
    assert "bob" in line(report, "nodes"), "who is named is found without multicast"


def test_a_healthy_machine_does_not_report_problems_of_others(
    reports: dict[str, Future[Report]],
) -> None:
    report = reports["none"].result()
    assert report["findings"] == []
    assert "bob" in line(report, "nodes")
    assert "of another cluster" in line(report, "secret")
