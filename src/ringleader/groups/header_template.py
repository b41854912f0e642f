"""Headers by the stamp: all of a call's bytes are known but its number and its past."""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from ringleader.engine import arrays
from ringleader.engine.prepared import Stamp
from ringleader.groups.call import Call
from ringleader.groups.control_channel import ControlChannel
from ringleader.wire import header as wire

MAX_KEPT = 4096
"""HeaderTemplates kept for calls like earlier ones; a model makes far fewer."""


class HeaderTemplates:
    """Numbers the operations of one group and announces each to the control."""

    def __init__(self, group: int, control: ControlChannel) -> None:
        self.sequence = 0
        self._group = group
        self._control = control
        self._history = 0
        self._kept: dict[tuple[object, ...], Stamp] = {}

    def of(self, call: Call, name: str, arity: int) -> Stamp:
        """What begins operations like ``call``: made once, it only numbers them."""
        root = wire.NO_ROOT if call.root is None else call.root
        key = (
            call.operation,
            call.dtype,
            call.reduce_op,
            call.count,
            root,
            name,
            arity,
            call.layout,
            call.kind,
        )
        stamp = self._kept.get(key)
        if stamp is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            stamp = self._kept[key] = self._make(call, name, arity)
        return stamp

    def _make(self, call: Call, name: str, arity: int) -> Stamp:
        header = wire.Header(
            operation=call.operation,
            group=self._group,
            sequence=0,
            count=call.count,
            dtype=arrays.dtype_name(call.dtype),
            reduce_op=call.reduce_op,
            root=call.root,
            algorithm=name,
            arity=arity if name == "tree" else 0,
            codec=call.kind,
            layout=call.layout,
        )
        template = wire.encode(header)
        head = template[: wire.SEQUENCE_OFFSET]
        middle = template[wire.COUNT_OFFSET : wire.HISTORY_OFFSET]
        tail = template[wire.HISTORY_OFFSET + 4 :]
        pack = Struct(f"<{len(head)}sQ{len(middle)}sI{len(tail)}s").pack
        begin = self._control.begin

        def stamp() -> bytes:
            self.sequence = sequence = self.sequence + 1
            now = pack(head, sequence, middle, self._history, tail)
            self._history = crc32(now)
            begin(sequence, now)
            return now

        return stamp
