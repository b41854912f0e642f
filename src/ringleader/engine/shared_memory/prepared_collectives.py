"""Small collectives in shared memory with all views made beforehand.

A prepared call is an exchange or a list of one-way steps, as in slot_collectives.py. It
leaves the same bytes and signals in the segments, so a rank may run its call prepared
while another rank does not.
"""

from __future__ import annotations

from ringleader.engine.call import Call
from ringleader.engine.engine import Forms, NextHeader
from ringleader.engine.shared_memory import prepared_exchanges, prepared_oneways
from ringleader.engine.shared_memory.arena import Arena
from ringleader.engine.shared_memory.prepared_views import Views


def prepare(arena: Arena, call: Call, next_header: NextHeader) -> Forms | None:
    """Functions that do calls like ``call``; None if they need more than a slot."""
    views = Views(arena, call)
    longest_bytes = max(call.lengths, default=0) * views.dtype.itemsize
    if longest_bytes > arena.geometry.slot_bytes:
        return None
    if call.operation in prepared_exchanges.OPERATIONS:
        return prepared_exchanges.prepare(views, next_header)
    return prepared_oneways.prepare(views, next_header)
