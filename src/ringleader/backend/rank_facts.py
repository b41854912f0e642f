"""What each rank tells the others when a process group forms.

Groups that torchrun or a script forms have no agents that compare the machines; the
ranks do it themselves. Ranks with different minor releases of torch are refused: of
2.13 and 2.15, checkpoints cannot read each other's plans and pipelines wait for ever.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ringleader import settings
from ringleader.backend.device import available_devices
from ringleader.backend.torch_release import minor
from ringleader.errors import ConfigError
from ringleader.groups.group import Group

_ROW_BYTES = 128
"""Length of what one rank tells, in ASCII: its accelerator, its torch and its host."""
_said: set[str] = set()
"""The warnings that were logged: once in a process."""
_log = logging.getLogger("ringleader")


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank, as it describes itself."""

    has_accelerator: bool
    torch: str
    host: str
    intra_host: str = ""
    """The inner layer that it asks for; with a leading "!" where that cannot run."""
    has_cuda: bool = False
    stages_on_host: bool = True

    @classmethod
    def here(cls, intra_host: str = "") -> RankFacts:
        """Return the facts of this rank."""
        kinds = {device.type for device in available_devices()} - {"cpu"}
        return cls(
            bool(kinds),
            torch.__version__,
            socket.gethostname(),
            intra_host,
            has_cuda="cuda" in kinds,
            stages_on_host=settings.stages_on_host(),
        )

    def encode(self) -> bytes:
        """Return a row of fixed length."""
        flag = 2 if self.has_cuda else int(self.has_accelerator)
        flag += 0 if self.stages_on_host else 3
        host = self.host[:64].replace(" ", "?")
        text = f"{flag} {self.torch[:40]} {host or '?'} {self.intra_host[:8]}"
        return text.encode("ascii", "replace")[:_ROW_BYTES].ljust(_ROW_BYTES)

    @classmethod
    def decode(cls, row: bytes) -> RankFacts:
        """Read a row; what cannot be printed becomes a question mark."""
        text = "".join(c if c.isprintable() else "?" for c in row.decode("latin-1"))
        flag, version, host, intra_host = [*text.split(), "", "", "", ""][:4]
        return cls(
            flag in ("1", "2", "4", "5"),
            version,
            host,
            intra_host,
            has_cuda=flag in ("2", "5"),
            stages_on_host=flag not in ("3", "4", "5"),
        )


def exchange(group: Group, intra_host: str = "") -> list[RankFacts]:
    """Return the facts of all ranks; ConfigError on every rank if they do not match.

    All ranks must call it.
    """
    own = RankFacts.here(intra_host)
    mine = torch.frombuffer(bytearray(own.encode()), dtype=torch.uint8)
    rows = torch.empty(group.size, _ROW_BYTES, dtype=torch.uint8, device="cpu")
    group.all_gather(rows.view(-1), mine)
    facts = [RankFacts.decode(bytes(row)) for row in rows.tolist()]
    check_torch(facts)
    check_intra_host(facts)
    check_host_staging(facts)
    return facts


def check_host_staging(facts: Sequence[RankFacts]) -> None:
    """Raise unless all ranks may pass tensors through host memory, or none."""
    for rank, each in enumerate(facts):
        if each.stages_on_host != facts[0].stages_on_host:
            refusing = 0 if each.stages_on_host else rank
            raise ConfigError(
                f"RINGLEADER_HOST_STAGING is 0 on rank {refusing} "
                f"({facts[refusing].host}) and not on rank {rank - refusing} "
                f"({facts[rank - refusing].host}); set it alike on all"
            )


def check_intra_host(facts: Sequence[RankFacts]) -> None:
    """Raise unless all ranks ask for the same inner layer and can run it."""
    for rank, each in enumerate(facts):
        if each.intra_host.startswith("!"):
            name = each.intra_host[1:]
            raise ConfigError(
                f"intra_host is {name!r}, which cannot run on rank {rank} ({each.host})"
                f": there, ringleader.backends()[{name!r}] says why; or leave it out"
            )
        if each.intra_host != facts[0].intra_host:
            raise ConfigError(
                f"intra_host is {facts[0].intra_host or 'not set'} on rank 0 "
                f"({facts[0].host}) and {each.intra_host or 'not set'} on rank {rank} "
                f"({each.host}); set RINGLEADER_INTRA_HOST alike on all"
            )


def check_torch(facts: Sequence[RankFacts]) -> None:
    """Compare all ranks with rank 0: raise for a minor release, warn for a patch."""
    first = facts[0]
    others = [rank for rank, each in enumerate(facts) if _differs(each, first)]
    # A refusal comes first, and the same rank is named on every rank.
    others.sort(key=lambda rank: minor(facts[rank].torch) == minor(first.torch))
    if not others:
        return
    other = facts[others[0]]
    text = (
        f"torch is {first.torch} on rank 0 ({first.host}) and {other.torch} on rank "
        f"{others[0]} ({other.host})"
    )
    needed = minor(first.torch)
    if minor(other.torch) != needed:
        raise ConfigError(
            f"{text}: checkpoints and pipelines of different minor releases do not "
            f"make the same calls; run `pip install 'torch=={needed}.*'` on "
            f"{other.host}"
        )
    if text not in _said:
        _said.add(text)
        _log.warning("%s: results may differ in the last bits", text)


def _differs(one: RankFacts, other: RankFacts) -> bool:
    return _release(one.torch) != _release(other.torch)


def _release(version: str) -> str:
    """Return "2.13.0" for "2.13.0+cpu": builds of one release count as equal."""
    return version.partition("+")[0]
