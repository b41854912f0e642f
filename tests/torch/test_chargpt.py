"""The character transformer: interrupted on some ranks, it goes on with others."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from ringleader import checkpoint
from tests.kit.scenario_worlds import Rank, ScenarioCall, ScenarioServer, one_shot

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "chargpt.py"
WITHIN_S = 300.0
TIMEOUT_S = 60.0
TINY = "--layers 2 --heads 2 --width 16 --context 16 --batch 50 --sample 40"
"""A batch of 50 divides by 2, but not by 3."""


class Runs:
    """Runs of the script in warm processes, all with the same checkpoints."""

    def __init__(self, server: ScenarioServer, folder: Path) -> None:
        self._server = server
        self.folder = folder

    def run(
        self, ranks: int, strategy: str, steps: int, interrupt: bool = False
    ) -> str:
        """Return what all ranks print; with ``interrupt``, rank 1 gets SIGINT."""
        args = f"--strategy {strategy} --folder {self.folder} --steps {steps} {TINY}"
        call = ScenarioCall(
            module="tests.torch.scenario_examples",
            name="run_script",
            args=(str(SCRIPT), *args.split(), "--save-every", "7"),
            limit_s=WITHIN_S,
        )
        with one_shot(self._server, ranks, call, TIMEOUT_S, "script") as world:
            if interrupt:
                self._interrupt(world)
            for rank in world:
                report = rank.report(WITHIN_S + 5)
                assert report.kind == "done", report.trace
                assert rank.has_ended(TIMEOUT_S), rank.written()
                assert self._server.reap(rank) == 0, rank.written()
            return "".join(rank.written() for rank in world)

    def _interrupt(self, world: list[Rank]) -> None:
        """Wait for the first checkpoint, then press Ctrl-C at one machine."""
        until_s = time.monotonic() + WITHIN_S
        while not list(self.folder.glob("step-*/manifest.json")):
            assert time.monotonic() < until_s, world[0].written()
            time.sleep(0.05)
        os.kill(world[1].pid, signal.SIGINT)

    def losses(self) -> list[float]:
        loaded = checkpoint.load(self.folder)
        assert loaded is not None
        values: list[float] = loaded.values["losses"]["values"]
        assert len(values) == loaded.step
        return values


def test_ctrl_c_with_fsdp_on_3_ranks_then_ddp_then_a_pipeline(
    scenario_server: ScenarioServer, tmp_path: Path
) -> None:
    """Every loss is that of one process which was never interrupted."""
    runs, alone = (Runs(scenario_server, tmp_path / name) for name in ("runs", "alone"))
    said = runs.run(3, "fsdp", 1_000_000, interrupt=True)
    done = int(re.findall(r"^interrupted: saved step (\d+)", said, re.MULTILINE)[0])
    before = runs.losses()
    assert len(before) == done
    said = runs.run(2, "ddp", done + 10)
    assert f"resumed after step {done}: loss {before[-1]:.4f}" in said
    said = runs.run(2, "pipeline", done + 20)
    assert f"resumed after step {done + 10}: loss" in said
    assert len(said.partition("sample:")[2]) > 40
    alone.run(1, "ddp", done + 20)
    assert runs.losses() == pytest.approx(alone.losses(), rel=1e-3)
    assert (runs.folder / "loss.svg").read_text().startswith("<svg")
