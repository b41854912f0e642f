"""Limits how much uvicorn and asyncio log, since strangers can cause what they log.

A request that is malformed is not logged at all. What is left are defects: the first of
them are logged with their traceback, and then one in a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ringleader.paramserver.server.http.rate_limit import RateLimiter

BURST = 5
PER_S = 1 / 60
_LOGGERS = ("asyncio", "uvicorn.error")


class LogLimit(logging.Filter):
    """Drops records above the limit, and counts them in the next one that passes."""

    def __init__(self) -> None:
        super().__init__()
        self._limiter = RateLimiter(per_s=PER_S, burst=BURST)
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        if self._limiter.wait_s("", time.monotonic()):
            self._dropped += 1
            return False
        if self._dropped:
            text = record.getMessage().rstrip()
            record.msg, record.args = (
                f"{text}\n({self._dropped} messages before this one were not logged)",
                (),
            )
            self._dropped = 0
        return True


@contextmanager
def limited_logs() -> Iterator[None]:
    """Limit what the loggers of uvicorn and asyncio log together in this context."""
    limit = LogLimit()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(limit)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(limit)
