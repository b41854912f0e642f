"""``ProbePort``: the answer to a connection opened for ``Purpose.PROBE``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ringleader.errors import ProtocolError


class ProbePort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Port on which the answering agent waits for the link probe."""

    port: Annotated[int, msgspec.Meta(ge=1024, le=65535)]


_DECODER = msgspec.msgpack.Decoder(ProbePort)


def decode_probe_port(body: bytes, who: str) -> ProbePort:
    """Decode the answer of ``who``; raises ``ProtocolError``."""
    try:
        return _DECODER.decode(body)
    except msgspec.DecodeError as exc:
        raise ProtocolError(who, f"sent an invalid probe port ({exc})") from exc
