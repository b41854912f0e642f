"""The hello of links over MPI."""

from __future__ import annotations

import pytest

from ringleader.errors import ProtocolError
from ringleader.wire.mpi_hello import NOT_SEEN, MpiHello, decode, encode

HELLO = MpiHello(
    group=2**64 - 1,
    incarnation=bytes(range(16)),
    seen=NOT_SEEN,
    rank=2,
    size=3,
    control_tag=17,
    bulk_tag=2**31 - 1,
)


def test_a_hello_arrives_as_it_was_sent() -> None:
    assert decode(encode(HELLO), 2) == HELLO


def test_a_hello_that_is_none_names_its_sender() -> None:
    data = encode(HELLO)
    for wrong, reason in (
        (data[:-1], "hello over MPI of 63 bytes"),
        (b"X" + data[1:], "another version of ringleader"),
        (data[:48] + b"\x03" + data[49:], "from rank 3 of 3"),
    ):
        with pytest.raises(ProtocolError, match=f"^rank 2: .*{reason}"):
            decode(wrong, 2)
