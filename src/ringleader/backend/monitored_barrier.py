"""torch's monitored_barrier: a barrier that names the ranks that did not arrive.

Every rank sends to rank 0 and waits for its reply; rank 0 receives in rank order. The
error texts are torch's own: programs, and torch's tests, match their words.
"""

from __future__ import annotations

import torch

from ringleader.deadline import Deadline
from ringleader.errors import DeadlineExceeded, RingleaderError
from ringleader.groups.group import Group

FIRST_TAG = -(2**62)
"""Outside the tags of users, which are not negative. Every barrier has its own tag: a
rank that is too late for one barrier does not count as arrived at the next."""


def run(group: Group, timeout_s: float, turn: int, *, wait_all_ranks: bool) -> None:
    """Return when every rank has called it; on rank 0, raise for those that did not."""
    token = torch.zeros(1, dtype=torch.uint8, device="cpu")
    deadline = Deadline.after(timeout_s)
    if group.size == 1:
        return
    if group.rank == 0:
        _collect(group, token, deadline, FIRST_TAG + turn, wait_all=wait_all_ranks)
    else:
        _report(group, token, timeout_s, FIRST_TAG + turn)


def _report(group: Group, token: torch.Tensor, timeout_s: float, tag: int) -> None:
    try:
        group.send(token, 0, tag=tag, timeout_s=timeout_s)
        group.recv(token, 0, tag=tag, timeout_s=timeout_s)
    except RingleaderError as exc:
        text = (
            f"Rank {group.rank} successfully reached monitoredBarrier, but received "
            f"errors while waiting for send/recv from rank 0. Please check rank 0 "
            f"logs for faulty rank. ({exc})"
        )
        raise DeadlineExceeded(0, text) from exc


def _collect(
    group: Group, token: torch.Tensor, deadline: Deadline, tag: int, *, wait_all: bool
) -> None:
    missing: list[int] = []
    limit_ms = round(deadline.after_s * 1000)
    for peer in range(1, group.size):
        left_s = deadline.left_s()
        if left_s <= 0 and not wait_all:
            text = f"Rank 0 timed out in monitoredBarrier after {limit_ms} ms"
            raise DeadlineExceeded(peer, text)
        try:
            group.recv(token, peer, tag=tag, timeout_s=max(left_s, 0.001))
        except DeadlineExceeded as exc:  # other errors have broken the group
            missing.append(peer)
            if not wait_all:
                text = f"Rank {peer} failed to pass monitoredBarrier in {limit_ms} ms"
                raise DeadlineExceeded(peer, text) from exc
    if missing:
        who = ", ".join(map(str, missing))
        text = f"Ranks {who} failed to pass monitoredBarrier in {limit_ms} ms"
        raise DeadlineExceeded(missing[0], text)
    for peer in range(1, group.size):
        group.send(token, peer, tag=tag, timeout_s=max(deadline.left_s(), 1.0))
