"""``--peers`` with one machine that all reach, where multicast does not pass."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from ringleader.node.protocol.agent_port import AGENT_PORT
from ringleader.simulation.lan import can_make_faults, lan
from ringleader.testing.node_process import NodeProcess
from tests.kit import agent_worker
from tests.kit.machines import RINGLEADER, Machines
from tests.kit.warm_python import WarmPython

PATIENT_DOCTOR = (sys.executable, "-m", "tests.kit.patient_doctor")
SCRIPT = """
import time
import torch.distributed as dist

dist.init_process_group("ringleader")
size = dist.get_world_size()
print("size", size, flush=True)
while size < 3:
    time.sleep(0.1)  # until the third machine is there
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(not can_make_faults()[0], reason=can_make_faults()[1])
def test_the_line_that_doctor_suggests_forms_a_cluster_of_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: WarmPython
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    with lan(hosts=3) as net:
        machines = Machines(net, tmp_path, warm_python)
        for index in range(3):
            net.no_multicast(index)
        home = Path(machines.environment(0)["RINGLEADER_HOME"])
        running = NodeProcess.start(
            net.hosts[0], home, Path(agent_worker.__file__), "m0"
        )
        try:
            running.wait_for("up")
            address = net.hosts[0].address
            doctor = machines.start(
                1, *PATIENT_DOCTOR, "doctor", "--json", "--peer", address
            )
            assert doctor.end() == 1
        finally:
            running.close()
        (finding,) = json.loads("".join(doctor.lines))["findings"]
        assert finding["code"] == "no_multicast"
        line = re.search("`ringleader (.*?)`", finding["mend"])
        assert line is not None, finding
        assert f"--peers {address}:{AGENT_PORT} " in line[1]
        try:
            runs = [machines.run(0, "script.py")]
            for index in (1, 2):
                argv = [*RINGLEADER, *shlex.split(line[1])]
                runs.append(machines.start(index, *argv))
            for run in runs:
                run.wait_for(
                    "size 3",
                )
                assert run.end() == 0, "".join(run.lines)
        finally:
            machines.close()
