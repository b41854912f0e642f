"""Header templates: all bytes of a call's header except its number and its history."""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from ringleader.engine.arrays import dtype_name
from ringleader.engine.call import Call
from ringleader.engine.engine import NextHeader
from ringleader.groups.control_channel import ControlChannel
from ringleader.wire import header as wire

MAX_KEPT = 4096
"""Templates kept for calls like earlier ones; a model makes far fewer."""


class HeaderTemplates:
    """Numbers the operations of one group and announces each to the control channel."""

    def __init__(self, group: int, control: ControlChannel) -> None:
        self.sequence = 0
        self._group = group
        self._control = control
        self._history = 0
        self._kept: dict[tuple[object, ...], NextHeader] = {}

    def of(self, call: Call) -> NextHeader:
        """The function that begins an operation like ``call`` and returns its header.

        It is made once per kind of call; each use only fills in the number.
        """
        key = (
            call.operation,
            call.dtype,
            call.reduce_op,
            call.count,
            call.root,
            call.algorithm,
            call.arity,
            call.layout,
            call.codec_name,
        )
        next_header = self._kept.get(key)
        if next_header is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            next_header = self._kept[key] = self._make(call)
        return next_header

    def _make(self, call: Call) -> NextHeader:
        header = wire.Header(
            operation=call.operation,
            group=self._group,
            sequence=0,
            count=call.count,
            dtype=dtype_name(call.dtype),
            reduce_op=call.reduce_op,
            root=call.root,
            algorithm=call.algorithm,
            arity=call.arity if call.algorithm == "tree" else 0,
            codec=call.codec_name,
            layout=call.layout,
        )
        template = wire.encode(header)
        head = template[: wire.SEQUENCE_OFFSET]
        middle = template[wire.COUNT_OFFSET : wire.HISTORY_OFFSET]
        tail = template[wire.HISTORY_OFFSET + 4 :]
        pack = Struct(f"<{len(head)}sQ{len(middle)}sI{len(tail)}s").pack
        begin = self._control.begin

        def next_header() -> bytes:
            self.sequence = sequence = self.sequence + 1
            now = pack(head, sequence, middle, self._history, tail)
            self._history = crc32(now)
            begin(sequence, now)
            return now

        return next_header
