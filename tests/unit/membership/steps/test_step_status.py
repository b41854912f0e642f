"""StepStatus: it comes back as it went, and nothing contradictory gets in."""

from __future__ import annotations

import msgspec
import pytest

from ringleader.errors import ProtocolError
from ringleader.membership.member import MAX_PAYLOAD_BYTES, NO_VIEW, View
from ringleader.membership.steps.attempt import Attempt
from ringleader.membership.steps.status import (
    MAX_DATA_BYTES,
    MAX_ENDED,
    MAX_PROMISES,
    MAX_QUANTA,
    StepStatus,
    decode_status,
    encode_status,
    held_result,
    read_statuses,
)
from tests.kit.step_world import StepWorld, member


def status_of(name: str) -> StepStatus:
    world = StepWorld("abc")
    world.start("abc", num_steps=2)
    world.begin("abc")
    world.fill(name, (0, 2))
    world.at[name].assign((3, 1))
    world.propose("abc", heard_by="abc")
    world.propose("abc", heard_by="abc")
    return world.at[name].status(b"endpoint")


def test_a_status_comes_back_as_it_went() -> None:
    status = status_of("b")
    assert decode_status(encode_status(status), member("b")) == status
    assert len(status.promised) == 1
    assert [h.buckets for h in status.held] == [0b111, 0b101]
    assert status.quanta == (1, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 7},
        {"chain": b""},
        {"lineage": "no name"},
        {"quanta": (2, 2)},
        {"answers": NO_VIEW},
        {"view_members": (member("a"),)},
        {"held": (held_result(Attempt(NO_VIEW, 9), 3, 1),)},
        {"held": (held_result(Attempt(NO_VIEW, 3), 3, 0xFF),)},
        {"is_torn": True},
        {"data": b"x" * (MAX_DATA_BYTES + 1)},
    ],
)
def test_a_contradictory_status_is_refused(change: dict[str, object]) -> None:
    status = msgspec.structs.replace(status_of("b"), **change)
    with pytest.raises(ProtocolError, match="step status"):
        decode_status(encode_status(status), member("b"))


def test_garbage_counts_as_a_member_without_state() -> None:
    with pytest.raises(ProtocolError, match="malformed"):
        decode_status(b"\x93garbage", member("b"))
    world = StepWorld("ab")
    world.start("ab")
    view = world.propose("ab")
    bad = View(view.id, view.members, (view.payloads[0], b"garbage"))
    assert read_statuses(bad)[world.at["b"].me].lineage == ""
    assert world.plan(bad).adopt == {world.at["b"].me}


def test_the_longest_status_fits_into_a_payload() -> None:
    names = [chr(0x61 + i // 26) + chr(0x61 + i % 26) for i in range(64)]
    world = StepWorld("")
    for name in names:
        world.at[name] = type(StepWorld("a").at["a"])(member(name))
    me = world.at[names[0]]
    ring = tuple(world.at[n].me for n in names)
    view = world.view_id(names[0])
    assert me.freeze(view, ring)
    statuses = tuple(encode_status(StepStatus(answers=view)) for _ in names)
    committed = View(view, ring, statuses)
    me.install(committed, world.plan(committed))
    me.assign(range(65535 - MAX_QUANTA, 65535))
    for name in names[-MAX_ENDED:]:
        me.note_ended(world.at[name].me, view)
    for _ in range(MAX_PROMISES + 4):
        assert me.freeze(world.view_id(names[0]), ring)
    status = me.status(b"x" * MAX_DATA_BYTES)
    assert status.since > status.view  # the oldest promises are forgotten
    data = encode_status(status)
    assert len(data) <= MAX_PAYLOAD_BYTES
    assert decode_status(data, me.me) == status
