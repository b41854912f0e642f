"""The sealed record, in which encrypted links carry their bytes after the handshake.

Offset  size    field
0       4       length of the data, 1 to MAX_RECORD_BYTES, big-endian; not encrypted
4       length  data, encrypted
        16      tag, over the header and the data

``identity/record_cipher.py`` has the keys and nonces.
"""

from __future__ import annotations

import struct

ALPN = "ringleader/1"
SEALED_ALPN = "ringleader/1-sealed"
"""Offered by ends that can use sealed records. Links between ranks use them then; to
connections of agents, which are no links, both names mean the same."""

SECRET_BYTES = 32
"""The first message of each side inside TLS, if sealed records were agreed."""
MAX_RECORD_BYTES = 256 << 10
"""Most data in one record. Larger ones save little, and the next rank can forward
nothing of a record before all of it is here."""
MIN_RECORD_BYTES = 4 << 10
"""Shorter pieces of a stream are not cut."""
TAG_BYTES = 16
HEADER = struct.Struct(">I")
"""Big-endian, so that the first bytes of a TLS record are a length that is too long."""
HEADER_BYTES = HEADER.size
OVERHEAD_BYTES = HEADER_BYTES + TAG_BYTES


class RecordForged(Exception):
    """A record is not the one that the peer sealed for this place of its stream."""
