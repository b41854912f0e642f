"""benchmarks/elastic_kills.py --add: the results of several processes are one."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.elastic_tally import Tally

FOLDER = Path(__file__).parents[3] / "benchmarks"


def measured(file: Path, seed: int, kills: int) -> Path:
    """Write what a process with some kills in worlds of two and three has saved."""
    two, three = Tally(), Tally()
    for _ in range(kills):
        two.note_kill("held/leader", 0.3, 0.1)
        three.note_kill("rs:0/other", 0.2, 0.1)
    two.silent_s["SIGSTOP"] = [2.5]
    two.not_reached["ag:1"] = seed
    three.failures = [f"Hang at kill {seed}"]
    three.steps_compared, three.largest_difference = 100 * seed, seed / 2**60
    worlds = {"2": msgspec.to_builtins(two), "3": msgspec.to_builtins(three)}
    parts = [{"began": "10:00:00", "seed": seed, "kills": 2 * kills}]
    file.write_text(json.dumps({"lan": True, "parts": parts, "worlds": worlds}))
    return file


def add(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    """Run the benchmark without a kill of its own; return its exit status."""
    monkeypatch.syspath_prepend(str(FOLDER))
    program = FOLDER / "elastic_kills.py"
    command = [program, "--kills", 0, "--silent", 0, *arguments]
    monkeypatch.setattr(sys, "argv", [str(each) for each in command])
    with pytest.raises(SystemExit) as exited:
        runpy.run_path(str(program), run_name="__main__")
    return exited.value.code


def test_the_results_of_several_processes_are_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [measured(tmp_path / f"{seed}.json", seed, 5 * seed) for seed in (1, 2, 3)]
    out = tmp_path / "all.json"
    assert add(monkeypatch, "--lan", "--add", *files, "--out", out) == 1, "few kills"
    found: dict[str, Any] = json.loads(out.read_text())
    assert (found["kills"], found["steps_compared"]) == (60, 600)
    assert [part["seed"] for part in found["parts"]] == [1, 2, 3]
    assert found["failures"] == [f"Hang at kill {seed}" for seed in (1, 2, 3)]
    two, three = (msgspec.convert(found["worlds"][s], Tally) for s in "23")
    assert (two.num_kills, three.num_kills) == (30, 30)
    assert two.cells["held/leader"].gaps_ms == [300.0] * 30
    assert three.overheads_s == [0.1] * 30
    assert (two.silent_s, two.not_reached) == ({"SIGSTOP": [2.5] * 3}, {"ag:1": 6})
    assert three.largest_difference == 3 / 2**60
    bars = {bar["bar"]: bar["found"] for bar in found["bars"]}
    assert (bars["0 hangs"], bars["0 wrong sums"]) == (3, 0)


def test_nothing_is_added_twice_or_to_what_was_measured_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = measured(tmp_path / "1.json", 1, 5), tmp_path / "all.json"
    twice = add(monkeypatch, "--lan", "--add", file, file, "--out", out)
    assert "was added before" in str(twice)
    other = add(monkeypatch, "--add", file, "--out", out)
    assert "measured with --lan" in str(other)
    assert not out.exists()
