"""Bytes that metrics count are those that the network interface counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from tests.kit.exposition_format import Family, parse
from tests.kit.machines import RINGLEADER, Machines
from tests.kit.warm_python import WarmPython

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
]

HEADERS = 14 + 20 + 32
"""Bytes of Ethernet, IP and TCP (with its timestamp) in each packet."""
CALLS = "ringleader_collective_calls_total"
SCRIPT = """
import json, sys, time
from pathlib import Path
import torch, ringleader
import torch.distributed as dist

FOLDER = Path("/sys/class/net/eth0/statistics")

def counted():
    seen = ringleader.metrics.snapshot()
    names = ("tx_bytes", "tx_packets", "rx_bytes", "rx_packets")
    return {
        "sent": seen.value("ringleader_link_sent_bytes_total"),
        "received": seen.value("ringleader_link_received_bytes_total"),
        "calls": seen.value("ringleader_collective_calls_total", outcome="ok"),
        **{name: int((FOLDER / name).read_text()) for name in names},
    }

dist.init_process_group("ringleader")
dist.barrier()
before = counted()
dist.barrier()  # nobody sends values before all have counted
for _ in range(24):
    tensor = torch.ones(1 << 20)
    dist.all_reduce(tensor)
dist.barrier()
after = counted()
print(json.dumps({name: after[name] - before[name] for name in after}), flush=True)
if len(sys.argv) > 1:
    time.sleep(3600)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def net() -> Iterator[VirtualLan]:
    with lan(hosts=2, rate="1gbit") as made:
        yield made


@pytest.mark.parametrize("flags", [(), ("--plaintext",)], ids=["tls", "plain"])
def test_the_bytes_of_links_are_those_of_the_interface(
    net: VirtualLan, tmp_path: Path, warm_python: WarmPython, flags: tuple[str, ...]
) -> None:
    with Machines.with_script(net, tmp_path, warm_python, SCRIPT) as machines:
        script = str(tmp_path / "train.py")
        runs = [machines.run(i, "--nodes", "2", *flags, script) for i in range(2)]
        for run in runs:
            line = run.lines[run.wait_for('"tx_bytes"')]
            seen = json.loads(line[line.index("{") :])
            sent = seen["tx_bytes"] - HEADERS * seen["tx_packets"]
            received = seen["rx_bytes"] - HEADERS * seen["rx_packets"]
            assert seen["sent"] == pytest.approx(sent, rel=0.01)
            assert seen["received"] == pytest.approx(received, rel=0.01)
            assert seen["sent"] > 24 * (4 << 20), (
                "half of the sum each way, and headers"
            )
            assert seen["calls"] == 26
        assert [run.end() for run in runs] == [0, 0]


def test_the_page_of_a_machine_shows_its_rank_while_it_trains(
    net: VirtualLan, tmp_path: Path, warm_python: WarmPython
) -> None:
    with Machines.with_script(net, tmp_path, warm_python, SCRIPT) as machines:
        script = str(tmp_path / "train.py")
        runs = [machines.run(i, "--nodes", "2", script, "stay") for i in range(2)]
        for run in runs:
            run.wait_for('"tx_bytes"')
        ranks = set()
        for index in range(2):
            page = page_of(machines, index)
            ranks |= {dict(at)["rank"] for _, at in page[CALLS].samples}
            members = page["ringleader_view_members"].samples.values()
            assert list(members) == [2]
            jobs = page["ringleader_jobs"].samples.items()
            running = [v for (_, labels), v in jobs if ("state", "running") in labels]
            assert running == [1]
        assert ranks == {"0", "1"}


def page_of(machines: Machines, index: int) -> dict[str, Family]:
    """The page of a machine, once its worker has published all calls."""
    while True:
        command = machines.start(index, *RINGLEADER, "metrics")
        assert command.end() == 0, "".join(command.lines)
        page = parse("".join(command.lines))
        if CALLS in page and sum(page[CALLS].samples.values()) >= 25:
            return page
