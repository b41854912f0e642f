"""Trainers of other people, unchanged and with default arguments, lose a rank.

Trainer and SFTTrainer gather numbers in every step, at every log and at the end. Three
real ranks each; one kills itself when a step begins, in the middle of a backward, or
before the losses of the last steps are gathered. In Lightning with a limit of time,
rank 0 broadcasts an object in every step.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(3000)

PROGRAM = Path(__file__).parent / "programs/surviving_trainers.py"
SIZE, WITHIN_S = 3, 2700.0
KINDS = ("trainer", "sft")
TIMES = ("begin", "backward", "last log")
SCENARIOS = [(kind, rank, when) for kind in KINDS for rank in (0, 1) for when in TIMES]
LIGHTNING = [("lightning", None, "never"), ("lightning", 0, "backward")]
ALL = [*((kind, None, "never") for kind in KINDS), *SCENARIOS, *LIGHTNING]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    """The folders of all scenarios, after they have run one after another."""
    root = tmp_path_factory.mktemp("runs")
    folders = {s: root / "-".join(map(str, s)) for s in ALL}
    scenarios = [
        {"kind": s[0], "dying": s[1], "when": s[2], "folder": str(folders[s])}
        for s in ALL
    ]
    (root / "scenarios.json").write_text(json.dumps(scenarios))
    quiet = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, str(PROGRAM), str(root / "scenarios.json")],
        env={**os.environ, **quiet, "TOKENIZERS_PARALLELISM": "false"},
        check=True,
        timeout=WITHIN_S,
    )
    return folders


def results(folder: Path, lost: int | None) -> list[dict[str, Any]]:
    """What the ranks that are left have found; all must have ended well."""
    ends = json.loads((folder / "ends.json").read_text())
    said = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
    wanted = [-signal.SIGKILL if rank == lost else 0 for rank in range(SIZE)]
    assert ends == wanted, said
    left = [rank for rank in range(SIZE) if rank != lost]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in left]


@pytest.mark.parametrize(("kind", "lost", "when"), SCENARIOS)
def test_a_trainer_goes_on_without_a_rank(
    kind: str, lost: int, when: str, ended: dict[Any, Path]
) -> None:
    whole = results(ended[kind, None, "never"], None)[0]
    first, second = results(ended[kind, lost, when], lost)
    assert first["weights"] == second["weights"]
    assert first["losses"] == second["losses"]
    assert len(first["losses"]) == len(whole["losses"])
    assert whole["losses"][-1] < 0.7 * whole["losses"][0], "it learns"
    for name in ("losses", "evaluated"):
        mine, full = first[name], whole[name]
        mine, full = (mine[-1], full[-1]) if name == "losses" else (mine, full)
        assert mine == pytest.approx(full, rel=0.15), name
    assert first["saved"] == ["model.safetensors"], "the lowest rank that is alive"
    assert first["read"] == first["weights"]
    assert second["saved"] == []


def test_fit_of_lightning_ends_without_rank_0(ended: dict[Any, Path]) -> None:
    whole, lost = LIGHTNING
    full = results(ended[whole], None)[0]
    first, second = results(ended[lost], 0)
    assert first["weights"] == second["weights"]
    assert first["losses"] == second["losses"]
    assert len(first["losses"]) == len(full["losses"]) == 6
    assert full["losses"][-1] < 0.9 * full["losses"][0], "it learns"
    assert first["losses"][-1] == pytest.approx(full["losses"][-1], rel=0.15)
