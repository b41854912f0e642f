"""Log records that strangers can cause are bounded, and dropped ones counted."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import time
import traceback

import pytest

from ringleader import log_limit
from ringleader.log_limit import MAX_PRINTED, LimitedText, limited_logs


def test_what_libraries_print_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    found = io.StringIO()
    with contextlib.redirect_stderr(LimitedText(found)):
        for _ in range(10_000):
            sys.stderr.write("Traceback\n")
        assert len(found.getvalue()) <= MAX_PRINTED
        now_s = 60.0
        sys.stderr.write("again")
    assert found.getvalue().endswith("again")


def test_a_traceback_is_printed_as_a_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    found = io.StringIO()
    with contextlib.redirect_stderr(LimitedText(found)):
        for _ in range(10_000):
            now_s += 1.0  # there is soon room for a first line again
            try:
                raise OSError("its client has gone")
            except OSError:
                traceback.print_exc()
    begun = found.getvalue().count("Traceback (most")
    assert (
        0 < begun == found.getvalue().count("OSError: its client has gone\n") < 10_000
    )


def test_a_flood_of_records_is_cut_and_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with limited_logs("asyncio", "uvicorn.error"):
        for i in range(1000):
            logging.getLogger("asyncio").error("failure %d", i)
            logging.getLogger("uvicorn.error").error("failure %d", i)
        assert len(caplog.records) == log_limit.BURST
        now_s = 61.0
        logging.getLogger("asyncio").error("failure %s", "again")
    dropped = 2000 - log_limit.BURST
    assert caplog.records[-1].getMessage() == (
        f"failure again\n({dropped} messages before this one were not logged)"
    )
    logging.getLogger("asyncio").error("not limited any more")
    assert len(caplog.records) == log_limit.BURST + 2
