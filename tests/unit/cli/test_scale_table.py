"""``ringleader simulate --profile`` prints the tables of docs/scale.md."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import typer
from typer.testing import CliRunner

from ringleader.cli.simulate import simulate
from ringleader.simulation.collectives.wire_profile import PROFILES

PAGE = Path(__file__).parents[3] / "docs" / "scale.md"
EXAMPLE = re.compile(
    r"^`ringleader (simulate --profile [^`]*)`.*\n\n((?:\|.*\n)+)", re.M
)

app = typer.Typer()
app.callback()(lambda: None)
app.command()(simulate)


def test_the_tables_of_the_page_are_what_the_commands_print() -> None:
    examples = EXAMPLE.findall(PAGE.read_text())
    assert {shlex.split(command)[2] for command, _ in examples} == set(PROFILES)
    for command, table in examples:
        result = CliRunner().invoke(app, shlex.split(command))
        assert result.exit_code == 0, result.output
        assert table in result.stdout, f"docs/scale.md: {command} prints another table"


def test_json_has_the_question_and_all_numbers() -> None:
    options = ["--profile", "1gbe", "--nodes", "2,1024", "--bytes", "25M", "--json"]
    result = CliRunner().invoke(app, ["simulate", *options])
    answer = json.loads(result.stdout)
    assert answer["num_bytes"] == 25_000_000
    assert answer["wire"]["medium"] == "switch"
    assert [each["nodes"] for each in answer["results"]] == [2, 1024]
    assert answer["results"][0]["efficiency"] is None


def test_without_the_time_of_a_step_there_are_no_efficiencies() -> None:
    options = ["simulate", "--profile", "wifi6", "--nodes", "2"]
    head = CliRunner().invoke(app, options).stdout.splitlines()[2]
    assert "computes" not in head
    assert "of the wire" in head


def test_a_slow_core_is_counted() -> None:
    options = ["--profile", "25gbe", "--nodes", "4", "--json"]
    plain, slow = (
        json.loads(CliRunner().invoke(app, ["simulate", *options, *more]).stdout)
        for more in ([], ["--copy-speed", "1GB/s"])
    )
    assert slow["results"][0]["time_s"] > plain["results"][0]["time_s"]
