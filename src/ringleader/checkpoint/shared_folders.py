"""Which ranks see the same folder: those of one machine, or of a mounted disk."""

from __future__ import annotations

import secrets

from ringleader.checkpoint.agreement import together
from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.checkpoint.storage import Storage, write

_MARK = ".seen-"


def find_disks(storage: Storage, exchange: ByteExchange) -> list[int]:
    """Return for each rank the first rank that sees the same folder.

    Each rank writes a file with a random name, then looks for those of the others.
    Raises ConfigError, on all ranks, if one of them cannot write to its folder.
    """
    if exchange.size == 1 or storage.is_shared:
        return [0] * exchange.size
    mark = f"{_MARK}{secrets.token_hex(8)}"

    def leave_mark() -> bytes:
        write(storage, mark, [])
        return mark.encode()

    def look(marks: list[bytes]) -> bytes:
        present = set(storage.names())
        return bytes(mark.decode() in present for mark in marks)

    try:
        marks = together(exchange, "write to the folder", leave_mark)
        seen = together(exchange, "read the folder", lambda: look(marks))
    finally:
        storage.remove(mark)
    return [view.index(1) for view in seen]
