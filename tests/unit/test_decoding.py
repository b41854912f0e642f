"""Threads that use a type of messages for the first time at the same moment."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

THREADS: Final = """
import sys, threading
from typing import Annotated
import msgspec
from msgspec import Meta
from ringleader import decoding

sys.setswitchinterval(1e-6)
Name = Annotated[str, Meta(max_length=64)]
Names = Annotated[dict[Name, Name], Meta(max_length=16)]
fields = [("a", Name), ("b", Names), ("c", Name)]
content = {"a": "x", "b": {"y": "z"}, "c": "w"}
for number in range(100):
    kind = msgspec.defstruct(f"Kind{number}", fields)
    meet, found = threading.Barrier(3), []

    def decode():
        meet.wait()
        found.append(decoding.from_FORMAT(msgspec.FORMAT.encode(content), kind))

    threads = [threading.Thread(target=decode) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [kind(**content)] * 3, found
"""


@pytest.mark.parametrize("form", ["msgpack", "json"])
def test_threads_may_decode_a_new_type_at_once(form: str) -> None:
    """With msgspec's own functions the process dies by SIGSEGV."""
    script = THREADS.replace("FORMAT", form)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
