"""join_run: an unmodified script of torch becomes a member of a run."""

from __future__ import annotations

from typing import Final

import msgspec
import torch

from ringleader.deadline import Deadline
from ringleader.decoding import from_json
from ringleader.errors import ConfigError, ProtocolError
from ringleader.groups.group import Group
from ringleader.membership.member import Member
from ringleader.training.connect import connect
from ringleader.training.control.run_environment import run_config
from ringleader.training.member_data import MemberData
from ringleader.training.survivors import Survivors

MEMBER_BYTES: Final = 256


def join_run(group: Group) -> Survivors:
    """Become a member of the run, and wait until all ranks of ``group`` are."""
    config = run_config(can_return=False)
    if config is None:
        raise ConfigError("this process was not started by ringleader run --survive")
    about = MemberData(layout={"script": "torch"})
    session, _ = connect(config, about, config.partition)
    members = _exchange(group, session.step.me)
    session.wait_view(
        lambda installed: set(members) <= set(installed.view.members),
        Deadline.after(group.timeout_s),
    )
    return Survivors(session, members)


def _exchange(group: Group, me: Member) -> list[Member]:
    """Return the members by rank; all ranks call it."""
    mine = torch.zeros(MEMBER_BYTES, dtype=torch.uint8)
    encoded = msgspec.json.encode(me)
    mine[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    rows = [torch.empty_like(mine) for _ in range(group.size)]
    group.all_gather(rows, mine)
    members = []
    for rank, row in enumerate(rows):
        text = row.numpy().tobytes().rstrip(b"\0")
        try:
            members.append(from_json(text, Member))
        except msgspec.MsgspecError as exc:
            raise ProtocolError(rank, f"sent {text[:80]!r} as its name") from exc
    return members
