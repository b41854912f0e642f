"""Measures a cluster of three hosts on a virtual LAN: formation, faults, attacks.

    python benchmarks/cluster.py discovery --runs 20
    python benchmarks/cluster.py formation --runs 20
    python benchmarks/cluster.py leader --runs 20
    python benchmarks/cluster.py silence
    python benchmarks/cluster.py attack

Needs root and iproute2. Prints the results; ``--out FILE`` appends them as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ringleader.simulation.lan import VirtualLan, lan
from ringleader.testing.node_process import NodeProcess, make_home, member_names

AGENT = Path(__file__).parents[1] / "tests" / "kit" / "agent_worker.py"
TRAINER = Path(__file__).with_name("cluster_trainer.py")

HOSTS = 3
ALL = {f"n{i}" for i in range(HOSTS)}


@contextmanager
def homes(count: int) -> Iterator[list[Path]]:
    """Yield the homes of the machines of one cluster."""
    root = os.urandom(32)
    with TemporaryDirectory() as folder:
        yield [make_home(Path(folder) / str(i), root) for i in range(count)]


def kill(net: VirtualLan, index: int, node: NodeProcess) -> None:
    """Kill everything on a host at once."""
    net.hosts[index].kill_all()
    node.close()


def spread(values: list[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum of a list of seconds."""
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 3),
        "p95": round(ordered[max(0, round(0.95 * len(ordered)) - 1)], 3),
        "worst": round(ordered[-1], 3),
    }


def discovery(runs: int) -> dict[str, object]:
    """Time from the start of the last agent until all three are in one view."""
    took: list[float] = []
    with lan(hosts=HOSTS, rate="1gbit") as net:
        for _ in range(runs):
            with homes(HOSTS) as paths, ExitStack() as stack:
                nodes = []
                for i in range(HOSTS):
                    node = NodeProcess.start(net.hosts[i], paths[i], AGENT, f"n{i}")
                    stack.callback(node.close)
                    node.wait_for("up")
                    nodes.append(node)
                up_s = time.monotonic()
                for node in nodes:
                    node.query_until(lambda s: member_names(s) == ALL)
                took.append(time.monotonic() - up_s)
    return {"runs": runs, "one_view": len(took), "seconds": spread(took)}


def start_training(
    net: VirtualLan, paths: list[Path], *arguments: str
) -> list[NodeProcess]:
    """Start the training script on every host."""
    return [
        NodeProcess.start(
            net.hosts[i],
            paths[i],
            TRAINER,
            *arguments,
            RINGLEADER_NAME=f"n{i}",
        )
        for i in range(len(paths))
    ]


def formation(runs: int) -> dict[str, object]:
    """Time from the start of the last process to its first step, imports included."""
    took: list[float] = []
    with lan(hosts=HOSTS, rate="1gbit") as net:
        for _ in range(runs):
            with homes(HOSTS) as paths, ExitStack() as stack:
                nodes = start_training(net, paths, "3", "3", "1")
                started_s = time.monotonic()
                for node in nodes:
                    stack.callback(node.close)
                    stack.callback(node.process.kill)
                for node in nodes:
                    step = node.wait_for("step", 60, size=HOSTS)
                took.append(float(step["at_s"]) - started_s)
    return {"runs": runs, "one_group": len(took), "seconds": spread(took)}


def leader(runs: int) -> dict[str, object]:
    """Time from killing the leader's host until the others train in a new group."""
    took: list[float] = []
    with lan(hosts=HOSTS, rate="1gbit") as net, homes(HOSTS) as paths:
        nodes = start_training(net, paths, "2", "3", "1")
        try:
            for node in nodes:
                node.wait_for("step", 60, size=HOSTS)
            order = list(range(HOSTS))  # by age; the first is the leader
            for _ in range(runs):
                index = order.pop(0)
                kill(net, index, nodes[index])
                killed_s = time.monotonic()
                steps = [nodes[i].wait_for("step", 30, size=HOSTS - 1) for i in order]
                took.append(max(float(s["at_s"]) for s in steps) - killed_s)
                [nodes[index]] = [
                    NodeProcess.start(
                        net.hosts[index],
                        paths[index],
                        TRAINER,
                        *("2", "3", "1"),
                        RINGLEADER_NAME=f"n{index}",
                    )
                ]
                order.append(index)
                for node in nodes:
                    node.wait_for("step", 60, size=HOSTS)
        finally:
            for node in nodes:
                node.process.kill()
                node.close()
    return {"runs": len(took), "seconds": spread(took)}


def silence(_runs: int) -> dict[str, object]:
    """Time to notice a cut cable, and the effect of stopped processes."""
    with ExitStack() as stack:
        net = stack.enter_context(lan(hosts=HOSTS, rate="1gbit"))
        paths = stack.enter_context(homes(HOSTS))
        nodes = []
        for i in range(HOSTS):
            node = NodeProcess.start(net.hosts[i], paths[i], AGENT, f"n{i}")
            stack.callback(node.close)
            node.wait_for("up")
            nodes.append(node)
        for node in nodes:
            node.query_until(lambda s: member_names(s) == ALL)
        return {"cable_cut": spread(_cut(net, nodes)), "stopped": _stop(nodes)}


def _cut(net: VirtualLan, nodes: list[NodeProcess]) -> list[float]:
    """Time until both others have a view without the host that was cut off."""
    noticed = []
    for _ in range(5):
        net.cut(2)
        cut_s = time.monotonic()
        for node in nodes[:2]:
            node.query_until(lambda s: member_names(s) == {"n0", "n1"})
        noticed.append(time.monotonic() - cut_s)
        net.mend(2)
        for node in nodes:
            node.query_until(lambda s: member_names(s) == ALL, 60)
    return noticed


def _stop(nodes: list[NodeProcess]) -> dict[str, object]:
    agent = int(nodes[2].events[0]["agent"])
    time.sleep(2)
    before = nodes[0].query()["epoch"]
    os.kill(agent, signal.SIGSTOP)
    time.sleep(2)
    os.kill(agent, signal.SIGCONT)
    time.sleep(2)
    after = nodes[0].query()["epoch"]
    os.kill(agent, signal.SIGSTOP)
    time.sleep(30)
    views = [member_names(node.query()) for node in nodes[:2]]
    os.kill(agent, signal.SIGCONT)
    woke_s = time.monotonic()
    for node in nodes:
        node.query_until(lambda s: member_names(s) == ALL, 30)
    return {
        "2 s evicts": after - before,
        "30 s leaves": [sorted(view) for view in views],
        "rejoined_s": round(time.monotonic() - woke_s, 2),
    }


def attack(_runs: int) -> dict[str, object]:
    """Step times of two training hosts under attack.

    The attacker uses CPU of this machine whatever its target is. So in turns it attacks
    a sink on its own host, which is the baseline, and the training.
    """
    baseline: list[float] = []
    attacked: list[float] = []
    with lan(hosts=HOSTS, rate="1gbit") as net, homes(2) as paths:
        nodes = start_training(net, paths, "2", "2", "0", "700")
        try:
            for node in nodes:
                node.wait_for("step", 60, size=2)
            ports = _listening_ports(net)
            count = 0
            sink = net.hosts[2].popen([sys.executable, "-c", SINK])
            for _ in range(3):
                for target, found in (
                    (net.hosts[2], baseline),
                    (net.hosts[0], attacked),
                ):
                    targets = (
                        ports if target is net.hosts[0] else [SINK_PORT] * len(ports)
                    )
                    attackers = [
                        _start_attack(net, target.address, port) for port in targets
                    ]
                    time.sleep(0.5)
                    while not nodes[0].inbox_is_empty():
                        nodes[0].wait_for("step")
                    found += _steps(nodes[0], ATTACK_S - 2)
                    done = [
                        int(attacker.communicate(timeout=60)[0])
                        for attacker in attackers
                    ]
                    count += sum(done) if target is net.hosts[0] else 0
            sink.kill()
            problems = [
                e for n in nodes for e in n.events if e["event"] in ("wrong", "lost")
            ]
        finally:
            for node in nodes:
                node.process.kill()
                node.close()
    return {
        "connections": count,
        "calm_s": spread(baseline),
        "under_attack_s": spread(attacked),
        "ratio_of_medians": round(
            statistics.median(attacked) / statistics.median(baseline), 3
        ),
        "lost_or_wrong": len(problems),
    }


def _listening_ports(net: VirtualLan) -> list[int]:
    """List the listening ports of the first host: the agent's and the worker's."""
    argv = net.hosts[0].command(["ss", "-ltnH"])
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    rows = [line.split()[3] for line in text.splitlines()]
    return sorted({int(r.rsplit(":", 1)[1]) for r in rows if not r.startswith("127.")})


def _steps(node: NodeProcess, seconds: float) -> list[float]:
    until_s = time.monotonic() + seconds
    found = []
    while time.monotonic() < until_s:
        found.append(float(node.wait_for("step")["took_s"]))
    return found


ATTACK_S = 8.0
SINK_PORT = 4444
SINK = f"""
import socket
server = socket.create_server(("", {SINK_PORT}), backlog=512)
while True:
    server.accept()[0].close()
"""
ATTACK = """
import os, socket, sys, time
address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
until, count, slow = time.time() + seconds, 0, []
rubbish = [os.urandom(200), b"\\x16", b"GET / "]
while time.time() < until and count < 4000:
    try:
        sock = socket.create_connection((address, port), 0.2)
        sock.setblocking(False)
        sock.send(rubbish[count % 3])
        count += 1
        slow.append(sock)
    except OSError:
        pass
    for held in slow[-20:]:
        try:
            held.send(b"\\x03")
        except OSError:
            pass
    slow = slow[-200:]
    time.sleep(0.001)
print(count)
"""


def _start_attack(net: VirtualLan, address: str, port: int) -> subprocess.Popen[str]:
    """Send garbage, silence and slowloris from the third host, about 500 per second."""
    argv = [sys.executable, "-c", ATTACK, address, str(port), str(ATTACK_S)]
    return net.hosts[2].popen(argv, stdout=subprocess.PIPE, text=True)


MEASURES: dict[str, Callable[[int], dict[str, object]]] = {
    "discovery": discovery,
    "formation": formation,
    "leader": leader,
    "silence": silence,
    "attack": attack,
}


def main() -> None:
    """Run the named measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measure", nargs="+", choices=MEASURES)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for name in options.measure:
        found = MEASURES[name](options.runs)
        print(json.dumps({name: found}), flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(
                    json.dumps({"when": time.strftime("%F %T"), name: found}) + "\n"
                )


if __name__ == "__main__":
    main()
