"""The group of a view: formed from endpoints, at once, and ended at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from ringleader.deadline import Cancellation, Deadline
from ringleader.errors import GroupAborted, PeerUnreachable, ProtocolError
from ringleader.groups import measure_links
from ringleader.groups.group import Group, handle_of
from ringleader.groups.known_links import KnownLinks
from ringleader.groups.view_group import (
    decode_endpoint,
    encode_endpoint,
    form_view_group,
)
from ringleader.testing.threaded_world import run_threads
from ringleader.transport.dialer import Endpoint
from ringleader.transport.free_ports import free_ports
from ringleader.transport.link import Link
from ringleader.transport.shared_listener import ListenerLease


class Member:
    """One process of a run: its lease, its endpoint and what it knows."""

    def __init__(self) -> None:
        self.lease = ListenerLease.take(range(1), None)
        text = encode_endpoint(self.lease, ["127.0.0.1"])
        self.endpoint = decode_endpoint(text, 0)
        self.known = KnownLinks()

    def form(
        self,
        name: str,
        rank: int,
        endpoints: Sequence[Endpoint],
        stop: Cancellation | None = None,
        *,
        share_memory: bool = False,
    ) -> Group:
        deadline = Deadline.after(60.0, stop)
        return form_view_group(
            name,
            rank,
            endpoints,
            self.lease,
            deadline=deadline,
            known=self.known,
            share_memory=share_memory,
        )


@contextmanager
def members(count: int) -> Iterator[list[Member]]:
    made = [Member() for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.lease.close()


def form_all(
    name: str, view: Sequence[Member], *, share_memory: bool = False
) -> list[Group]:
    endpoints = [each.endpoint for each in view]
    return run_threads(
        [
            partial(m.form, name, r, endpoints, share_memory=share_memory)
            for r, m in enumerate(view)
        ]
    )


@contextmanager
def closing(groups: Sequence[Group]) -> Iterator[Sequence[Group]]:
    try:
        yield groups
    finally:
        for each in groups:
            each.close()


def check_sums(groups: Sequence[Group], count: int = 1021) -> None:
    inputs = [torch.arange(count) * 0.5 + r for r in range(len(groups))]
    expected = np.sum([each.double().numpy() for each in inputs], axis=0)
    outs = [torch.empty(count) for _ in groups]
    run_threads(
        [
            partial(g.all_reduce, i, out=o)
            for g, i, o in zip(groups, inputs, outs, strict=True)
        ]
    )
    for out in outs:
        np.testing.assert_allclose(out.double().numpy(), expected, rtol=1e-6)


def test_views_follow_each_other_over_one_listener_and_nothing_is_measured_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[int] = []
    real = measure_links._measure_pair

    def count(link: Link, leads: bool, deadline: Deadline) -> tuple[float, float]:
        measured.append(link.peer)
        return real(link, leads, deadline)

    monkeypatch.setattr(measure_links, "_measure_pair", count)
    with members(4) as (a, b, c, d):
        with closing(form_all("1:a", [a, b, c])) as first:
            check_sums(first)
            links = handle_of(first[0]).network.links
        assert len(measured) == 6, "the first group measures all three pairs"
        with closing(form_all("2:b", [b, c])) as second:
            check_sums(second)
            assert handle_of(second[0]).network.links[0][1] == links[1][2]
            assert handle_of(second[0]).network == handle_of(second[1]).network
        assert len(measured) == 6, "survivors measure nothing"
        with closing(form_all("3:b", [d, c, b])) as third:
            check_sums(third)
            networks = [handle_of(each).network for each in third]
            assert networks[0] == networks[1] == networks[2]
        assert len(measured) == 10, "only the pairs of the newcomer are measured"
        with closing(form_all("4:b", [d, c, b], share_memory=True)) as fourth:
            assert set(fourth[0].links().values()) == {"shm"}
            check_sums(fourth)


def test_a_link_that_one_end_does_not_know_is_measured_again() -> None:
    """A view that some members did not finish leaves them with unlike knowledge."""
    with members(3) as view:
        with closing(form_all("1:a", view)):
            pass
        view[1].known = KnownLinks()
        with closing(form_all("2:a", view)) as groups:
            networks = [handle_of(each).network for each in groups]
            assert networks[0] == networks[1] == networks[2]
            check_sums(groups)


def test_who_is_early_waits_until_the_view_is_installed_elsewhere() -> None:
    with members(2) as (a, b):
        endpoints = [a.endpoint, b.endpoint]

        def late() -> Group:
            time.sleep(0.1)
            return a.form("7:a", 0, endpoints)

        with closing(
            run_threads([late, lambda: b.form("7:a", 1, endpoints)])
        ) as groups:
            check_sums(groups)


@pytest.mark.parametrize("rank", [0, 1])
def test_forming_is_cancelled_from_another_thread(rank: int) -> None:
    """Rank 0 waits for a connection, rank 1 for the answer to its own."""
    with members(2) as view:
        stop = Cancellation()
        seen: list[float] = []

        def form() -> None:
            with pytest.raises(GroupAborted, match="node-c was lost"):
                view[rank].form("1:a", rank, [m.endpoint for m in view], stop)
            seen.append(time.monotonic())

        thread = threading.Thread(target=form)
        thread.start()
        time.sleep(0.1)
        cancelled_s = time.monotonic()
        stop.cancel("node-c was lost")
        thread.join(60)
        assert seen[0] - cancelled_s < 30.0
        with closing(form_all("2:a", view)) as groups:  # the listeners are as before
            check_sums(groups)
        assert view[0].lease.listener.num_parked() <= 1


def test_a_member_that_is_gone_is_reported_at_once() -> None:
    with members(3) as (a, b, c):
        (port,) = free_ports(1)  # nobody listens there
        lost = replace(a.endpoint, addresses=(("127.0.0.1", port),))
        started_s = time.monotonic()
        with pytest.raises(PeerUnreachable, match="is gone") as caught:
            b.form("1:a", 1, [lost, b.endpoint, c.endpoint])
        assert caught.value.peer == 0
        assert time.monotonic() - started_s < 30.0


def test_an_aborted_group_was_cancelled_and_the_other_members_see_it() -> None:
    with members(2) as view:
        stop = Cancellation()
        endpoints = [m.endpoint for m in view]
        groups = run_threads(
            [
                lambda: view[0].form("1:a", 0, endpoints, stop),
                lambda: view[1].form("1:a", 1, endpoints),
            ]
        )
        with closing(groups):
            stop.cancel("frozen for view 2")
            for each in groups:
                with pytest.raises(GroupAborted, match="frozen for view 2"):
                    each.barrier()


def test_an_endpoint_survives_its_encoding_and_rubbish_is_refused() -> None:
    with members(1) as (a,):
        text = encode_endpoint(a.lease, ["10.0.0.7", "fe80::1"])
        found = decode_endpoint(text, 3)
        port = a.lease.listener.port
        assert found.addresses == (("10.0.0.7", port), ("fe80::1", port))
        assert found.channel == a.lease.channel
        with pytest.raises(ProtocolError):
            decode_endpoint(b"\xff" * 100, 3)
