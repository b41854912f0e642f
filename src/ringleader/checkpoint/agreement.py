"""All ranks act, then all know whether all succeeded.

Otherwise one rank with a full disk would raise while the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.errors import ConfigError

_OK, _FAILED = b"\x00", b"\x01"


def together(
    exchange: ByteExchange, what: str, act: Callable[[], bytes | None]
) -> list[bytes]:
    """Call ``act`` and return the results of all ranks.

    If it raised ConfigError or OSError on some ranks, raises ConfigError on all, with
    the ranks and their reasons.
    """
    try:
        mine = _OK + (act() or b"")
    except (ConfigError, OSError) as exc:
        mine = _FAILED + str(exc).encode()[:2000]
    answers = exchange.gather(mine)
    failed = {
        rank: answer[1:].decode(errors="replace")
        for rank, answer in enumerate(answers)
        if answer[:1] == _FAILED
    }
    if failed:
        reasons = "; ".join(f"rank {rank}: {text}" for rank, text in failed.items())
        raise ConfigError(f"cannot {what}: {reasons}")
    return [answer[1:] for answer in answers]
