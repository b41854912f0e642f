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

    If it raised on some ranks, raises ConfigError on all, with the ranks and their
    reasons.
    """
    error: Exception | None = None
    try:
        mine = _OK + (act() or b"")
    except Exception as exc:  # noqa: BLE001  # the others must not wait for this rank
        error = exc
        mine = _FAILED + _reason(exc).encode(errors="replace")[:2000]
    answers = exchange.gather(mine)
    failed = {
        rank: answer[1:].decode(errors="replace")
        for rank, answer in enumerate(answers)
        if answer[:1] == _FAILED
    }
    if failed:
        reasons = "; ".join(f"rank {rank}: {text}" for rank, text in failed.items())
        raise ConfigError(f"cannot {what}: {reasons}") from error
    return [answer[1:] for answer in answers]


def _reason(exc: Exception) -> str:
    if isinstance(exc, ConfigError | OSError):
        return str(exc)
    return f"{type(exc).__name__}: {exc}"
