"""``ringleader simulate`` prints a table, JSON or an error message."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ringleader.cli import terminal
from ringleader.cli.simulate import simulate
from ringleader.collectives.algorithm import algorithms

app = typer.Typer()
app.callback()(lambda: None)
app.command()(simulate)


def ask(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["simulate", "--json", *options])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def times_of(answer: dict[str, Any], nodes: int) -> dict[str, float]:
    return {
        r["algorithm"]: r["time_s"] for r in answer["results"] if r["nodes"] == nodes
    }


def test_the_table_has_a_row_per_algorithm_and_marks_the_best() -> None:
    result = CliRunner().invoke(app, ["simulate", "--nodes", "2,8", "--bytes", "1M"])
    assert result.exit_code == 0
    assert "all_reduce of 1 MB over links of 1 Gbit/s and 500 us" in result.stdout
    rows = {line.split()[1]: line for line in result.stdout.splitlines() if "│" in line}
    assert set(rows) == set(algorithms("all_reduce"))
    assert rows["direct"].count("*") == 2
    assert "*" not in rows["star"].split("│")[3]


def test_json_has_every_number_of_the_question_and_the_answer() -> None:
    answer = ask("--nodes", "4", "--bytes", "25M", "--algorithms", "ring,star")
    assert answer["num_bytes"] == 25_000_000
    assert answer["latency_s"] == 0.0005
    times = times_of(answer, 4)
    assert list(times) == ["ring", "star"]
    # 1 Gbit/s is 117.7 MB/s of payload.
    assert times["ring"] == pytest.approx(1.5 * 25e6 / 117.7e6, rel=0.01)
    assert [r["is_best"] for r in answer["results"]] == [True, False]


@pytest.mark.parametrize("options", [["--algorithms", "ring"], ["--profile", "1gbe"]])
def test_it_says_what_it_works_on_where_it_takes_long(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["simulate", "--json", "--nodes", "2,8", *options]
    monkeypatch.setattr(terminal, "PROGRESS_S", 3600.0)
    assert CliRunner().invoke(app, argv).stderr == "", "a short one is not explained"
    monkeypatch.setattr(terminal, "PROGRESS_S", 0.0)
    result = CliRunner().invoke(app, argv)
    first, second = result.stderr.splitlines()
    assert first.startswith("ringleader simulate: 1 of 2: ")
    assert second.startswith("ringleader simulate: 2 of 2: ")
    assert second.endswith("8 nodes")
    json.loads(result.stdout)


def test_what_makes_no_sense_at_a_size_is_skipped_with_a_reason() -> None:
    answer = ask("--nodes", "65", "--bytes", "64k", "--algorithms", "ring,direct")
    [ring, direct] = answer["results"]
    assert ring["skipped"] is None
    assert direct["time_s"] is None
    assert "4,160 streams" in direct["skipped"]


def test_a_slow_link_and_islands_make_it_slower() -> None:
    base = ("--nodes", "6", "--bytes", "1M", "--algorithms", "ring,tree")
    even = times_of(ask(*base), 6)
    slow = times_of(ask(*base, "--slow-link", "100mbit"), 6)
    apart = times_of(ask(*base, "--islands", "2", "--island-bandwidth", "50mbit"), 6)
    assert all(even[name] < slow[name] < apart[name] for name in even)


def test_other_operations_have_their_own_algorithms() -> None:
    answer = ask("--operation", "gather", "--nodes", "3", "--bytes", "1k")
    assert set(times_of(answer, 3)) == {"star", "tree"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "2,x"], "--nodes"),
        (["--nodes", "0"], "--nodes: 0 is not between 1 and 4096"),
        (["--bytes", "many"], "--bytes"),
        (["--latency", "5"], "--latency"),
        (["--bandwidth", "1GB"], "--bandwidth"),
        (["--slow-link", "slow"], "--slow-link"),
        (["--slow-link", "1mbit", "--nodes", "1"], "--slow-link"),
        (
            ["--islands", "3", "--nodes", "2"],
            "--islands: must be between 1 and the fewest nodes (2)",
        ),
        (["--islands", "-1", "--nodes", "2"], "--islands"),
        (["--arity", "1"], "--arity"),
        (
            ["--operation", "allreduce"],
            "--operation: unknown 'allreduce'; use one of all_re",
        ),
        (["--algorithms", "ring,bus"], "--algorithms: all_reduce has no 'bus'"),
        (["--profile", "5gbe"], "--profile: unknown profile '5gbe'; use one of wifi6"),
        (["--profile", "1gbe", "--latency", "1ms"], "--latency cannot be given"),
        (["--profile", "1gbe", "--nodes", "1,2"], "at least 2 nodes"),
        (["--profile", "1gbe", "--bytes", "0"], "--bytes must be more than 0"),
        (["--profile", "1gbe", "--step-s", "-1"], "--step-s"),
        (["--profile", "1gbe", "--copy-speed", "fast"], "--copy-speed"),
        (["--step-s", "1"], "need --profile"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    options: list[str], words: str
) -> None:
    result = CliRunner().invoke(app, ["simulate", *options])
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
