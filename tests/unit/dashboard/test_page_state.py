"""The state of the page, as a pure function of what an agent knows."""

from __future__ import annotations

import json
from itertools import pairwise

from ringleader.dashboard.assets import load_assets
from ringleader.dashboard.changes import changes
from ringleader.dashboard.curve import MAX_POINTS, Curve
from ringleader.dashboard.http_message import event
from ringleader.dashboard.job_rows import (
    JobNumbers,
    RankTraffic,
    job_rows,
    rank_rows,
)
from ringleader.dashboard.number_files import NumberPoint
from ringleader.dashboard.page_state import SHARED_MEMORY, find_link, page_state
from tests.kit.simulated_cluster import (
    node_id,
    simulated_load,
    simulated_numbers,
    simulated_snapshot,
    simulated_state,
)


def test_machines_links_jobs_and_events_are_rows() -> None:
    state = simulated_state(4, 2)
    assert list(state["machines"]) == [node_id(number) for number in range(4)]
    first = state["machines"][node_id(0)]
    assert first["is_leader"]
    assert first["load"]["cpu_percent"] == 0.0
    assert state["machines"][node_id(1)]["devices"][0]["name"] == "GeForce RTX 1"
    assert [len(row["kind"]) for row in state["links"].values()] == [3, 2, 1]
    assert state["cluster"][""]["leader"] == "machine 0"
    assert state["jobs"]["job-1"]["about"] == "on machine 1, machine 3"
    assert [row["rank"] for row in state["jobs"]["job-1"]["ranks"]] == [0, 1]
    assert len(state["events"]) == 30
    json.dumps(state, allow_nan=False)


def test_a_link_is_shown_from_whichever_end_measured_it() -> None:
    snapshot = simulated_snapshot(2)
    there = page_state(snapshot, {})["links"]
    rows = snapshot["nodes"]
    link = rows[0]["links"].pop(node_id(1))
    link["out_bytes_per_s"], link["in_bytes_per_s"] = (
        link["in_bytes_per_s"],
        link["out_bytes_per_s"],
    )
    rows[1]["links"][node_id(0)] = link
    assert page_state(snapshot, {})["links"] == there
    rows[0]["host"] = rows[1]["host"] = "one host"
    state = page_state(snapshot, {})
    assert find_link(state, node_id(0), node_id(1))["kind"] == SHARED_MEMORY
    rows[1].update(host="another host", links={})
    assert page_state(snapshot, {})["links"] == {}


def test_each_link_is_found_from_both_ends() -> None:
    state = simulated_state(5)
    for one in range(4):
        for other in range(one + 1, 5):
            there = find_link(state, node_id(one), node_id(other))
            back = find_link(state, node_id(other), node_id(one))
            assert there["there_bytes_per_s"] == 1e6 * (1 + one * 7 + other * 13)
            assert there["back_bytes_per_s"] == 1e6 * (1 + one * 3 + other * 5)
            assert back["back_bytes_per_s"] == there["there_bytes_per_s"]
            assert back["there_bytes_per_s"] == there["back_bytes_per_s"]
            assert back["latency_s"] == there["latency_s"]
    assert find_link(state, node_id(0), node_id(9))["kind"] is None


def test_fifty_machines_and_eight_jobs_are_a_small_page() -> None:
    first = event("changes", changes({}, simulated_state(50, 8)))
    assert len(first) < 110e3
    files = [body for path, (_, body) in load_assets().items() if path != "/"]
    assert sum(map(len, files)) + len(first) < 150e3
    moved = changes(simulated_state(50, 8), simulated_state(50, 8, moment=1))
    assert len(event("changes", moved)) < len(first)


def test_an_unknown_machine_and_an_empty_cluster_are_shown() -> None:
    snapshot = simulated_snapshot(2)
    snapshot["nodes"][1].update(profile=None, latency_s=None, health="unknown")
    snapshot["leader"] = ""
    state = page_state(snapshot, {node_id(0): simulated_load(0)})
    machine = state["machines"][node_id(1)]
    assert machine["load"] is None
    assert "chip" not in machine
    assert state["cluster"][""]["leader"] == ""


def test_two_machines_of_one_name_are_told_apart() -> None:
    snapshot = simulated_snapshot(2)
    for row in snapshot["nodes"]:
        row["name"] = "laptop"
    names = {row["name"] for row in page_state(snapshot, {})["machines"].values()}
    assert len(names) == 2


def test_only_rows_that_changed_are_sent() -> None:
    before, after = simulated_state(3, 1), simulated_state(3, 1)
    assert changes(before, after) == {}
    del after["machines"][node_id(2)]
    after["machines"][node_id(1)] = {**after["machines"][node_id(1)], "health": "dead"}
    found = changes(before, after)
    assert found.keys() == {"machines"}
    assert found["machines"].keys() == {node_id(1), node_id(2)}
    assert found["machines"][node_id(2)] is None
    assert changes({}, after).keys() == after.keys()


def test_a_long_curve_keeps_its_ends_and_few_points() -> None:
    curve = Curve()
    for step in range(100_000):
        curve.add(step, float(step))
    shown = curve.shown()
    assert len(shown) <= MAX_POINTS
    assert shown[0] == (0, 0.0)
    assert shown[-1] == (99_999, 99_999.0)
    gaps = {b[0] - a[0] for a, b in pairwise(shown[:-1])}
    assert len(gaps) == 1, "evenly spaced"
    curve.add(3, 1.0)
    assert curve.shown() == [(3, 1.0)], "the program began again"


def test_a_curve_keeps_more_digits_than_are_shown() -> None:
    numbers = JobNumbers()
    values = {"loss": 1.23456789, "none": None}
    numbers.add("a", 0, [NumberPoint(0.0, 1, None, values)])
    assert numbers.curves["loss"].shown() == [(1, 1.23457)]
    assert numbers.curves["none"].shown() == [(1, None)]


def test_the_lowest_rank_that_logs_a_number_is_drawn() -> None:
    numbers = JobNumbers()
    numbers.add("b", 1, [NumberPoint(0.0, 1, None, {"loss": 5.0})])
    numbers.add("a", 0, [NumberPoint(0.0, 1, 0.5, {"loss": 4.0})])
    numbers.add("b", 1, [NumberPoint(0.0, 2, 0.5, {"loss": 3.0, "own": None})])
    assert numbers.curves["loss"].shown() == [(1, 4.0)]
    assert numbers.curves["own"].shown() == [(2, None)]
    assert numbers.ranks[1].step == 2


def test_a_job_whose_workers_log_does_not_wait() -> None:
    snapshot = simulated_snapshot(2, 1)
    for row in snapshot["nodes"]:
        row["waiting_jobs"] = row["jobs"]
    (row,) = job_rows(snapshot["nodes"], {})
    assert (row["state"], row["about"]) == ("waiting", "waits on machine 0, machine 1")
    (row,) = job_rows(snapshot["nodes"], simulated_numbers(2, 1, 0))
    assert row["state"] == "running"


def test_a_rank_that_waits_says_for_whom() -> None:
    numbers = simulated_numbers(2, 1, 0)["job-0"]
    numbers.traffic[0] = (node_id(0), RankTraffic(0, 2.5e6, 1, 0.61, 3.9))
    numbers.traffic[2] = (node_id(1), RankTraffic(2, 0.0, 0, 0.01))
    names = {node_id(0): "studio", node_id(1): "laptop"}
    waiting, busy, silent = rank_rows(numbers, names)
    assert waiting["waits_for"] == "rank 1 on laptop, 61 % of the time"
    assert (waiting["sent_bytes_per_s"], waiting["compression"]) == (2.5e6, 3.9)
    assert busy["waits_for"] == ""
    assert (silent["machine"], silent["step"]) == ("laptop", None)
    assert silent["waits_for"] == "", "a hundredth of the time is not worth a word"
