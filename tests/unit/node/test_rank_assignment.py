"""Ranks follow from the view alone, so all nodes come to the same result."""

from __future__ import annotations

import msgspec
import pytest

from ringleader.errors import ProtocolError
from ringleader.ids import NodeId
from ringleader.node.agent.rank_assignment import (
    MEASURE_S,
    RETRY_WAIT_S,
    Refused,
    Round,
    Waiting,
    assign_ranks,
    is_stale,
    patience_s,
    round_id,
)
from ringleader.node.agent.view_state import ViewState
from ringleader.node.protocol import node_state
from ringleader.node.protocol.node_state import (
    JobEnded,
    JobFingerprint,
    JobRequest,
    NodeState,
    SplitSeen,
)
from ringleader.topology.link_profile import LinkProfile
from ringleader.topology.node_profile import measure

PROFILE = measure()
ROUND = round_id("7@aaaa", "job")
A, B, C = NodeId("a" * 52), NodeId("b" * 52), NodeId("c" * 52)


def ask(
    *,
    need: int = 2,
    most: int = 64,
    wait_s: float = 3.0,
    round_id: str = "",
    script: str = "",
) -> JobRequest:
    return JobRequest(
        job="job",
        request_id="1",
        min_nodes=need,
        max_nodes=most,
        wait_s=wait_s,
        fingerprint=JobFingerprint(script=script),
        round=round_id,
    )


def state(
    name: str, held: JobRequest | None = None, ready: list[str] | None = None
) -> NodeState:
    return NodeState(
        name=name,
        host=name,
        addresses=["10.0.0.1"],
        port=4000,
        profile=PROFILE,
        links={node: LinkProfile(500e-6, 125e6, 125e6) for node in (A, B, C)},
        job_requests=[held] if held else [],
        ready_jobs=ready or [],
    )


def view(**nodes: JobRequest | None) -> ViewState:
    """Make a view in the given ring order; seniority is alphabetical."""
    ids = {"a": A, "b": B, "c": C}
    found = {ids[name]: state(name, held) for name, held in nodes.items()}
    return ViewState("7@aaaa", tuple(sorted(found)), found)


def with_go(of: ViewState, by: NodeId = A) -> ViewState:
    """Return the view after ``by`` marked the job as ready; A leads."""
    said = msgspec.structs.replace(of.states[by], ready_jobs=["job"])
    return ViewState(of.view_id, of.by_seniority, {**of.states, by: said})


def test_a_full_round_begins_at_once_in_the_order_of_the_ring() -> None:
    of = view(
        c=ask(need=3, most=3),
        b=ask(need=3, most=3),
        a=ask(need=3, most=3),
    )
    results = [assign_ranks("job", of, node) for node in (A, B, C)]
    assert results == [Round(ROUND, (A, C, B))] * 3, "it starts at the oldest node"


def test_too_few_machines_wait_and_know_how_many_are_missing() -> None:
    of = view(a=ask(need=3, most=3), b=ask(need=3, most=3), c=None)
    assert assign_ranks("job", of, A) == Waiting((A, B), (), 1)
    assert patience_s("job", of) is None


def test_the_leader_decides_how_long_to_wait_for_more_machines() -> None:
    of = view(a=ask(), b=ask(wait_s=5.0), c=ask(wait_s=1.0))
    assert assign_ranks("job", of, B) == Waiting((A, B, C), (), 0)
    assert patience_s("job", of) == 5.0, "the most patient one decides"
    assert assign_ranks("job", with_go(of, by=B), B) == Waiting((A, B, C), (), 0)
    assert assign_ranks("job", with_go(of), B) == Round(ROUND, (A, B, C))


def test_survivors_do_not_wait_again() -> None:
    left = msgspec.structs.replace(ask(), is_retry=True)
    assert patience_s("job", view(a=ask(), b=left)) == RETRY_WAIT_S


def test_a_round_waits_for_unmeasured_links_until_the_leader_starts_it() -> None:
    of = view(a=ask(most=2), b=ask(most=2))
    bare = {n: msgspec.structs.replace(s, links={}) for n, s in of.states.items()}
    of = ViewState(of.view_id, of.by_seniority, bare)
    assert assign_ranks("job", of, A) == Waiting((A, B), (), 0)
    assert patience_s("job", of) == MEASURE_S
    assert assign_ranks("job", with_go(of), A) == Round(ROUND, (A, B))


def test_no_round_begins_while_others_are_still_in_the_old_one() -> None:
    one = ask(need=1)
    of = with_go(view(a=one, b=ask(need=1, round_id="6/job"), c=one))
    assert assign_ranks("job", of, C) == Waiting((A, C), (B,), 0)
    assert patience_s("job", of) is None


def test_beyond_the_maximum_the_youngest_nodes_stay_out() -> None:
    of = view(c=ask(most=2), a=ask(most=2), b=ask(most=2))
    assert assign_ranks("job", of, A) == Round(ROUND, (A, B))


def test_the_largest_minimum_wins_over_a_smaller_maximum() -> None:
    of = view(a=ask(need=3), b=ask(need=1, most=2), c=ask())
    assert assign_ranks("job", of, A) == Round(ROUND, (A, B, C))


def test_every_view_and_every_job_has_rounds_of_its_own() -> None:
    ids = {round_id(view, job) for view in ("7@a", "7@b") for job in ("job", "other")}
    assert len(ids) == 4


def test_requests_for_other_jobs_do_not_count() -> None:
    other = msgspec.structs.replace(ask(need=5, most=5), job="other")
    both = msgspec.structs.replace(
        state("a"), job_requests=[other, ask(need=1, most=1)]
    )
    of = ViewState("7@aaaa", (A, B), {A: both, B: state("b", other)})
    assert assign_ranks("job", of, A) == Round(ROUND, (A,))


def test_another_program_is_refused_and_named() -> None:
    of = view(
        a=ask(script="111"),
        b=ask(script="222"),
        c=ask(script="111"),
    )
    result = assign_ranks("job", of, B)
    assert isinstance(result, Refused)
    for word in ("script", "222 here", "111 there", " a ("):
        assert word in result.reason
    assert assign_ranks("job", with_go(of), A) == Round(ROUND, (A, C))


def test_the_oldest_decides_what_the_program_is_wherever_it_is_in_the_ring() -> None:
    of = view(c=ask(script="222"), a=ask(script="111"))
    assert isinstance(assign_ranks("job", of, C), Refused)
    refused = ((C, "script"),)
    assert assign_ranks("job", of, A) == Waiting((A,), (), 1, refused=refused)


def test_a_training_node_is_the_reference_rather_than_an_older_waiting_one() -> None:
    of = view(a=ask(script="222"), b=ask(script="111", round_id="6/job"))
    result = assign_ranks("job", of, A)
    assert isinstance(result, Refused)
    assert "from b (" in result.reason


@pytest.mark.parametrize("scripts", [("111", ""), ("", "111")])
def test_a_property_that_one_side_leaves_empty_is_not_compared(
    scripts: tuple[str, str],
) -> None:
    older, younger = (ask(script=script) for script in scripts)
    of = with_go(view(a=older, b=younger))
    assert assign_ranks("job", of, B) == Round(ROUND, (A, B))


@pytest.mark.parametrize(
    ("of", "stale"),
    [
        (
            view(a=ask(round_id="6/job"), b=ask(round_id="6/job")),
            False,
        ),
        (
            view(a=ask(round_id="6/job"), b=ask(round_id="6/job"), c=None),
            False,
        ),
        (view(a=ask(round_id="6/job")), True),
        (view(a=ask(round_id="6/job"), b=ask()), True),
        (
            view(a=ask(round_id="6/job"), b=ask(round_id="5/job")),
            True,
        ),
        (
            view(
                a=ask(round_id="6/job"),
                b=ask(round_id="6/job"),
                c=ask(),
            ),
            True,
        ),
        (
            view(
                a=ask(most=2, round_id="6/job"),
                b=ask(most=2, round_id="6/job"),
                c=ask(most=2),
            ),
            False,
        ),
    ],
    ids=[
        "unchanged",
        "idle one",
        "one lost",
        "one waits",
        "other round",
        "one comes",
        "full",
    ],
)
def test_a_round_ends_when_a_node_is_lost_or_comes(of: ViewState, stale: bool) -> None:
    assert is_stale("job", Round("6/job", (A, B)), of) is stale


def test_newcomers_with_other_limits_do_not_stop_a_running_job() -> None:
    running = {"a": ask(round_id="6/job"), "b": ask(round_id="6/job")}
    current = Round("6/job", (A, B))
    for newcomer in (ask(need=5, most=5), ask(need=2, most=2)):
        assert not is_stale("job", current, view(**running, c=newcomer))
    content = {name: ask(need=1, round_id="6/job") for name in ("a", "b")}
    lonely = ask(need=1, most=1)
    assert not is_stale("job", current, view(**content, c=lonely))


def test_a_node_that_has_finished_is_not_missed() -> None:
    left = view(a=ask(round_id="6/job"))
    assert not is_stale("job", Round("6/job", (A, B)), left, {B})
    assert is_stale("job", Round("6/job", (A, B)), left)


def test_a_job_that_ends_admits_no_newcomer() -> None:
    of = view(a=ask(round_id="6/job"), c=ask())
    assert not is_stale("job", Round("6/job", (A, B)), of, {B})


def test_after_a_split_the_round_of_the_older_node_goes_on() -> None:
    of = view(a=ask(round_id="6/job"), b=ask(round_id="5/job"), c=None)
    assert not is_stale("job", Round("6/job", (A,)), of)
    assert is_stale("job", Round("5/job", (B,)), of)


def test_a_node_state_survives_encoding_and_garbage_is_refused() -> None:
    before = state("desk", ask())
    assert node_state.decode(node_state.encode(before), A) == before
    for data in (
        b"",
        b"\xc1",
        node_state.encode(before)[:-1],
        b"\x80",
        bytes(40 << 10),
    ):
        with pytest.raises(ProtocolError):
            node_state.decode(data, A)


def test_a_node_state_that_is_too_large_is_refused_before_decoding() -> None:
    """Each part is within its limit; only the whole is too large."""
    long = "\U0001f40d" * 64
    fingerprint = JobFingerprint(
        script=long, torch=long, ringleader=long, compress=long, backend=long
    )
    held = msgspec.structs.replace(ask(), fingerprint=fingerprint, round=long)
    large = msgspec.structs.replace(
        state("desk"),
        addresses=[long] * 16,
        job_requests=[held] * 16,
        ended_jobs=[JobEnded("job", long, ok=True)] * 16,
        ready_jobs=["x" * 64] * 64,
    )
    data = node_state.encode(large)
    assert msgspec.msgpack.decode(data, type=NodeState) == large
    with pytest.raises(ProtocolError, match="limit"):
        node_state.decode(data, A)


def test_a_node_state_with_invalid_utf8_is_refused() -> None:
    data = node_state.encode(state("desk")).replace(b"desk", b"de\xffk")
    with pytest.raises(ProtocolError):
        node_state.decode(data, A)


def test_a_node_that_comes_from_another_part_notices_the_split() -> None:
    def view_of(counter: int, *nodes: NodeId) -> ViewState:
        return ViewState(f"{counter}@x", nodes, {node: state("n") for node in nodes})

    whole = view_of(9, A, B, C)
    assert whole.split_from(view_of(8, B, C)) == SplitSeen(A, B, 8)
    assert whole.split_from(view_of(8, A, B)) is None, "its leader stays"
    assert whole.split_from(view_of(8, C)) is None, "a single node just joins"
    assert whole.split_from(None) is None
    assert view_of(9, B, C).split_from(view_of(8, A, B, C)) is None, "A was lost"
