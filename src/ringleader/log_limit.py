"""Bounds what strangers can make a process log: fewer records, and a file that ends.

What is malformed is not logged at all. What is left are defects: the first of them are
logged with their traceback, and then one in a minute. Whatever else is printed to the
log of an agent (by a library, by the interpreter) is bounded by the length of the file.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from ringleader.rate_limit import RateLimiter

BURST = 5
PER_S = 1 / 60
MAX_BYTES = 256 << 10
"""Length at which a log file starts anew: some thousand lines, and the same again in
the file of before."""
STANDARD_ERROR = 2
MAX_PRINTED = 16 << 10
PRINTED_PER_S = 10.0
"""Characters: 36 KB in an hour."""
_TRACEBACK = "Traceback (most recent call last):"


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
def limited_logs(*names: str) -> Iterator[None]:
    """Limit what these loggers log together in this context.

    Without names: what all loggers print to standard error, for want of a handler.
    """
    limit = LogLimit()
    limited: list[logging.Filterer] = [logging.getLogger(name) for name in names]
    if not names and logging.lastResort is not None:
        limited = [logging.lastResort]
    for each in limited:
        each.addFilter(limit)
    try:
        yield
    finally:
        for each in limited:
            each.removeFilter(limit)


class LimitedText(io.TextIOBase):
    """A stream that passes on what libraries print: so much at once, then little.

    gRPC prints a traceback for calls whose client has gone, without a logger. Such a
    text is passed on as a whole, or not at all.
    """

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._limiter = RateLimiter(per_s=PRINTED_PER_S, burst=MAX_PRINTED)
        self._begun = ""
        """A traceback whose last line has not come."""

    def write(self, text: str, /) -> int:
        """Pass on a text, or drop it."""
        self._begun += text
        if not _is_begun(self._begun) or len(self._begun) > MAX_PRINTED:
            whole, self._begun = self._begun, ""
            if not self._limiter.wait_s("", time.monotonic(), len(whole)):
                self._target.write(whole)
        return len(text)

    def flush(self) -> None:
        """Flush the stream behind."""
        self._target.flush()


def _is_begun(text: str) -> bool:
    """Return whether more lines of the traceback in ``text`` are to come."""
    last = text.rstrip("\n").rpartition("\n")[2]
    return text.startswith(_TRACEBACK) and last.startswith((" ", _TRACEBACK))


def start_anew_if_long(path: Path) -> None:
    """If standard error goes to ``path``, which has grown long: keep its end beside it.

    The file is emptied, not replaced: other processes that print to it go on. It must
    have been opened for appending.
    """
    with suppress(OSError):  # a full disk: the log grows on, and the agent lives
        found = os.fstat(STANDARD_ERROR)
        if found.st_size <= MAX_BYTES or not os.path.samestat(found, path.stat()):
            return
        with open(path, "rb") as log:
            log.seek(-MAX_BYTES, os.SEEK_END)
            end = log.read(MAX_BYTES)
        before = path.with_name(f"{path.name}.1")
        with open(before, "wb", opener=private) as kept:
            kept.write(end)
        os.ftruncate(STANDARD_ERROR, 0)


def private(path: str, flags: int) -> int:
    """Open a file that other users cannot read; an opener for ``open``."""
    return os.open(path, flags, 0o600)
