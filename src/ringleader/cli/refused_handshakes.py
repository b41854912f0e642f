"""Says why the coordinator refuses a client's certificate.

gRPC tells a server nothing about handshakes that failed, but at level INFO it writes
the reason to standard error. So that stream is read while the server runs: reasons are
reported, the rest of gRPC's log is dropped, and everything else passes.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator

REPEAT_S = 60.0
"""The same reason is reported once in this time: strangers could fill the log."""
MAX_REASONS = 32

_LEVEL = "GRPC_VERBOSITY"
_LOG_LINE = re.compile(rb"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.]+:\d+\] ")
_INVALID = re.compile(r"CERTIFICATE_VERIFY_FAILED: (\w[\w ]{0,80})")
_MISSING = "PEER_DID_NOT_RETURN_A_CERTIFICATE"


@contextlib.contextmanager
def refused_handshakes(report: Callable[[str], None]) -> Iterator[None]:
    """Report refused handshakes; enter it before gRPC is imported.

    If GRPC_VERBOSITY is set, the user wants gRPC's own log, and nothing is done; NONE
    is what we set ourselves, and may come from the process that started this one.
    """
    if os.environ.get(_LEVEL, "NONE") != "NONE":
        yield
        return
    os.environ[_LEVEL] = "INFO"
    terminal = os.dup(2)
    source, sink = os.pipe()
    os.dup2(sink, 2)
    os.close(sink)
    reader = threading.Thread(target=_pass_on, args=(source, terminal, report))
    reader.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)  # the last end to write to is closed, and reading ends
        reader.join()
        os.close(terminal)


def reason_of(line: bytes) -> str | None:
    """Return why a handshake failed: "" if another line of gRPC's log, None if none."""
    if not _LOG_LINE.match(line):
        return None
    text = line.decode(errors="replace")
    if found := _INVALID.search(text):
        return found[1].strip()
    return "it showed no certificate" if _MISSING in text else ""


def _pass_on(source: int, terminal: int, report: Callable[[str], None]) -> None:
    reported_s: dict[str, float] = {}
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            reason = reason_of(line)
            if reason is None:
                os.write(terminal, printable(line))
            elif reason and _is_due(reported_s, reason):
                report(f"refused the certificate of a client: {reason}")


def printable(line: bytes) -> bytes:
    """Return a line without control characters.

    gRPC logs what clients send: a line feed in it begins a line that passes.
    """
    text = line.decode(errors="replace").rstrip("\n")
    shown = "".join(c if c.isprintable() or c == "\t" else "?" for c in text)
    return shown.encode() + b"\n"


def _is_due(reported_s: dict[str, float], reason: str) -> bool:
    now_s = time.monotonic()
    if now_s - reported_s.get(reason, -REPEAT_S) < REPEAT_S:
        return False
    if reason not in reported_s and len(reported_s) >= MAX_REASONS:
        return False
    reported_s[reason] = now_s
    return True
