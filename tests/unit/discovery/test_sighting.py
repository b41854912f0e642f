"""The table of sightings: bounded, patient, and not to be moved by strangers."""

from __future__ import annotations

import time
import tracemalloc
from ipaddress import IPv4Interface, IPv6Interface

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.discovery.record import (
    NodeRecord,
    RecordRefusal,
    encode,
    new_label,
    sign,
)
from ringleader.discovery.sighting import (
    MAX_FOREIGN,
    MAX_SIGHTINGS,
    Sighting,
    SightingConfig,
    Sightings,
)
from ringleader.errors import ConfigError
from ringleader.topology.interfaces import Interface, InterfaceKind

KEY = bytes(range(32))
OTHER = bytes(32)
LAN = Interface(
    name="eth0",
    kind=InterfaceKind.ETHERNET,
    addresses=(IPv4Interface("10.77.0.1/16"), IPv6Interface("fd77::1/64")),
)
CABLE = Interface(
    name="bridge0",
    kind=InterfaceKind.THUNDERBOLT,
    addresses=(IPv4Interface("10.99.0.1/24"),),
)


def label(number: int) -> str:
    return new_label(number.to_bytes(10, "big"))


def node(number: int, *, key: bytes = KEY, where: str = "10.77.0.2") -> NodeRecord:
    return sign(label(number), 29600, where.split(","), key)


def table(config: SightingConfig | None = None) -> Sightings:
    sightings = Sightings(KEY, config)
    sightings.settle([LAN], own=["ourownlabel"])
    return sightings


def hear(
    sightings: Sightings, record: NodeRecord, now_s: float = 0.0
) -> Sighting | None:
    return sightings.hear(record.label, record.port, encode(record), now_s)


def test_a_member_is_seen_once_and_dialled_once() -> None:
    sightings = table()
    seen = hear(sightings, node(1))
    assert seen == Sighting(label(1), 29600, ("10.77.0.2",))
    assert hear(sightings, node(1), 1.0) is None, "nothing new"
    assert sightings.next_to_dial(1.0) == seen
    assert sightings.next_to_dial(1.0) is None, "that dial is under way"
    sightings.reached(label(1))
    assert sightings.next_to_dial(100.0) is None
    assert sightings.all() == [seen]


def test_addresses_of_the_faster_cable_are_tried_first() -> None:
    sightings = table()
    sightings.settle([LAN, CABLE], own=[])
    seen = hear(sightings, node(1, where="10.77.0.2,fd77::2,10.99.0.2,8.8.8.8"))
    assert seen is not None
    assert seen.addresses == ("10.99.0.2", "10.77.0.2", "fd77::2")


def test_a_dial_that_failed_is_repeated_ever_more_slowly() -> None:
    sightings = table()
    hear(sightings, node(1))
    now_s = 0.0
    assert sightings.next_to_dial(now_s) is not None
    for wait_s in (0.5, 1, 2, 4, 8, 10, 10):
        sightings.failed(label(1), now_s)
        assert hear(sightings, node(1), now_s) is None, "repeating it changes nothing"
        assert sightings.next_to_dial(now_s + wait_s - 0.01) is None
        now_s += wait_s
        assert sightings.next_to_dial(now_s) is not None


def test_a_link_that_ended_is_dialled_again_soon() -> None:
    sightings = table()
    hear(sightings, node(1))
    for _ in range(5):
        sightings.failed(label(1), 0.0)
    sightings.reached(label(1))
    sightings.failed(label(1), 50.0)
    assert sightings.next_to_dial(50.49) is None
    assert sightings.next_to_dial(50.5) is not None


def test_a_dial_that_nobody_reports_is_offered_again() -> None:
    sightings = table()
    hear(sightings, node(1))
    assert sightings.next_to_dial(0.0)
    assert sightings.next_to_dial(14.9) is None
    assert sightings.next_to_dial(15.0)


def test_the_one_who_waits_longest_is_dialled_first() -> None:
    sightings = table()
    for number in (3, 1, 2):
        hear(sightings, node(number), float(number))
    order = [sightings.next_to_dial(5.0) for _ in range(3)]
    assert [s.label for s in order if s] == [label(1), label(2), label(3)]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (node(1, key=OTHER), RecordRefusal.FOREIGN),
        (node(1, where="8.8.8.8"), RecordRefusal.ELSEWHERE),
        (node(1, where="192.168.1.1"), RecordRefusal.ELSEWHERE),
        (sign("ourownlabel", 29600, ["10.77.0.1"], KEY), RecordRefusal.OURSELVES),
        (sign("x", 29600, ["10.77.0.2"], KEY), RecordRefusal.MALFORMED),
        (sign(label(1), 80, ["10.77.0.2"], KEY), RecordRefusal.MALFORMED),
    ],
)
def test_anything_else_is_refused_and_counted(
    record: NodeRecord, why: RecordRefusal
) -> None:
    sightings = table()
    assert hear(sightings, record) is None
    assert sightings.refused == {why: 1}
    assert not len(sightings)
    assert sightings.next_to_dial(0.0) is None


def test_five_thousand_forged_records_change_nothing_and_cost_little() -> None:
    sightings = table()
    seen = hear(sightings, node(1))
    text = encode(node(0, key=OTHER))
    packets = [(label(number), 29600, text) for number in range(100, 5100)]
    tracemalloc.start()
    for packet in packets[:1000]:
        sightings.hear(*packet, 1.0)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    start_s = time.process_time()
    for packet in packets[1000:]:
        sightings.hear(*packet, 1.0)
    spent_s = time.process_time() - start_s
    assert sightings.all() == [seen]
    assert sightings.next_to_dial(1.0) == seen
    assert sightings.next_to_dial(1.0) is None
    assert sightings.refused == {RecordRefusal.FOREIGN: 5000}
    assert sightings.num_foreign == MAX_FOREIGN
    assert peak_bytes < 100_000
    assert spent_s < 10.0, "it takes a hundredth of that"


def test_nothing_forged_in_a_members_name_displaces_it() -> None:
    sightings = table()
    seen = hear(sightings, node(1))
    stolen = NodeRecord(label(1), 29600, ("10.77.0.66",), node(1).tag)
    assert hear(sightings, stolen) is None
    assert hear(sightings, node(1, key=OTHER, where="10.77.0.66")) is None
    assert sightings.all() == [seen]
    assert sightings.num_foreign == 0, "it is a member, whatever was said in its name"


def test_the_table_is_bounded_even_if_nobody_looks_at_it() -> None:
    sightings = table()
    for number in range(3 * MAX_SIGHTINGS):
        hear(sightings, node(number), float(number) / 10)
    assert len(sightings) == MAX_SIGHTINGS


def test_a_full_table_drops_who_failed_most_and_never_who_was_reached() -> None:
    sightings = table()
    for number in range(MAX_SIGHTINGS):
        hear(sightings, node(number))
    for number in range(MAX_SIGHTINGS):
        sightings.reached(label(number))
    assert hear(sightings, node(100)) is None
    for number, failures in ((7, 1), (8, 3), (9, 2)):
        for _ in range(failures):
            sightings.failed(label(number), 0.0)
    for number in (100, 101):
        assert hear(sightings, node(number))
    labels = {s.label for s in sightings.all()}
    assert {label(8), label(9)}.isdisjoint(labels)
    assert {label(7), label(100), label(101)} <= labels


def test_who_falls_silent_is_forgotten() -> None:
    sightings = table()
    hear(sightings, node(1), 0.0)
    hear(sightings, node(2), 0.0)
    hear(sightings, node(2), 60.0)
    assert [s.label for s in sightings.expire(119.9)] == []
    assert [s.label for s in sightings.expire(120.0)] == [label(1)]
    assert sightings.next_to_dial(180.0) is None
    assert hear(sightings, node(1), 200.0), "seen anew"


def test_a_goodbye_holds_if_nobody_contradicts() -> None:
    sightings = table()
    hear(sightings, node(1))
    assert sightings.say_goodbye(label(1), 10.0), "worth a question"
    assert not sightings.say_goodbye(label(1), 10.1), "which is asked"
    assert not sightings.say_goodbye(label(2), 10.0), "unknown"
    assert sightings.all() == []
    assert sightings.next_to_dial(10.0) is None
    assert sightings.fresh_labels(10.0) == [], "it must answer"
    assert [s.label for s in sightings.expire(13.0)] == [label(1)]


def test_a_forged_goodbye_is_undone_by_the_answer() -> None:
    sightings = table()
    seen = hear(sightings, node(1))
    sightings.say_goodbye(label(1), 10.0)
    hear(sightings, node(1), 11.5)
    assert sightings.expire(13.0) == []
    assert sightings.all() == [seen]


def test_half_a_lifetime_later_a_node_must_answer_again() -> None:
    sightings = table()
    hear(sightings, node(1), 0.0)
    assert sightings.fresh_labels(59.0) == [label(1)]
    assert sightings.fresh_labels(60.0) == []


def test_on_another_network_the_old_one_is_forgotten() -> None:
    sightings = table()
    hear(sightings, node(1))
    both = hear(sightings, node(2, where="10.77.0.2,10.99.0.2"))
    assert both is not None
    sightings.settle([CABLE], own=[])
    assert sightings.all() == [Sighting(label(2), 29600, ("10.99.0.2",))]


def test_the_key_is_not_shown() -> None:
    assert repr(KEY) not in repr(table())
    assert KEY.hex() not in repr(table())


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_wait_s": 0.0},
        {"first_wait_s": 20.0},
        {"goodbye_s": 200.0},
        {"dial_s": 0.0},
    ],
)
def test_a_config_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SightingConfig(**wrong)


steps = st.lists(
    st.tuples(
        st.sampled_from(["hear", "forge", "dial", "reached", "failed", "bye", "wait"]),
        st.integers(0, 2 * MAX_SIGHTINGS),
    ),
    max_size=60,
)
RECORDS = [node(number) for number in range(2 * MAX_SIGHTINGS + 1)]
FORGED = [node(number, key=OTHER) for number in range(2 * MAX_SIGHTINGS + 1)]


@settings(max_examples=60)
@given(steps)
def test_whatever_happens_only_members_are_dialled(
    happenings: list[tuple[str, int]],
) -> None:
    sightings, now_s, heard = table(), 0.0, set()
    for what, number in happenings:
        now_s += 0.05
        if what == "hear":
            heard.add(label(number))
            hear(sightings, RECORDS[number], now_s)
        elif what == "forge":
            before = sightings.all()
            hear(sightings, FORGED[number], now_s)
            assert sightings.all() == before
        elif what == "dial":
            chosen = sightings.next_to_dial(now_s)
            assert chosen is None or chosen.label in heard
        elif what == "reached":
            sightings.reached(label(number))
        elif what == "failed":
            sightings.failed(label(number), now_s)
        elif what == "bye":
            sightings.say_goodbye(label(number), now_s)
        else:
            now_s += number
        assert len(sightings) <= MAX_SIGHTINGS
        assert {s.label for s in sightings.all()} <= heard
