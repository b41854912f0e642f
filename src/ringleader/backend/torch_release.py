"""The releases of torch that the backend is tested with (docs/torch-versions.md)."""

from __future__ import annotations

import functools
import logging
import re

OLDEST, NEWEST = (2, 13), (2, 15)
"""Minor releases; ``make test-torch`` has been run for these and those between."""

_log = logging.getLogger(__name__)


def remark(version: str) -> str:
    """Return a sentence if ``version`` of torch was never tested; empty if it was."""
    found = re.match(r"(\d+)\.(\d+)", version)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    if OLDEST <= release <= NEWEST:
        return ""
    tested = f"{_text(OLDEST)} to {_text(NEWEST)}"
    if release < OLDEST:
        return (
            f"torch {version} is older than ringleader supports ({tested}): it may "
            f"fail; run `pip install 'torch>={_text(OLDEST)}'`"
        )
    return (
        f"torch {version} is newer than this ringleader knows ({tested}); if something "
        f"fails, run `pip install --upgrade ringleader` or `pip install "
        f"'torch=={_text(NEWEST)}.*'`"
    )


@functools.cache
def report(version: str) -> None:
    """Log the remark about ``version``, once in a process."""
    if text := remark(version):
        _log.warning("%s", text)


def minor(version: str) -> str:
    """Return "2.13" for "2.13.0+cpu"."""
    return ".".join(version.split(".")[:2])


def _text(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"
