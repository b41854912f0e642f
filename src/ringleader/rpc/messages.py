"""The messages between RPC endpoints, and their bytes on a link.

A message is a head of 16 bytes, a body and the bytes of its tensors, one tensor after
the other:

0   4   magic "RPC1"
4   4   length of the body
8   8   length of all tensors together
16      the body: MessagePack, one of the structs below, an array that begins with its
        tag

Nothing in a message is trusted. The receiver checks both lengths against its limit
before it allocates memory, and the shapes of the tensors against their length.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import msgspec

from ringleader.errors import ConfigError, ProtocolError

MAGIC = b"RPC1"
HEAD = struct.Struct("<4sIQ")
MAX_DIMENSIONS = 64
"""The most that torch supports."""
MAX_ELEMENTS = 1 << 60
MAX_BODY_BYTES = (1 << 32) - 1
NIL = msgspec.Raw(b"\xc0")


class Reference(
    msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True
):
    """The name of a value that its owner keeps; never used again for another value."""

    owner: int
    """Rank of the process that keeps the value."""
    creator: int
    """Rank of the process that chose the name."""
    nonce: int
    """A random number of the creator, another one each time it starts."""
    number: int

    def __str__(self) -> str:
        return f"RRef {self.creator}.{self.nonce:x}.{self.number}"


class TensorSpec(NamedTuple):
    """The dtype (torch's name) and the shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]


class _Message(
    msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True
):
    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors that follow the body."""
        return ()


class Value(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A value of the user; ``values.py`` says what ``content`` holds."""

    content: msgspec.Raw = NIL
    tensors: tuple[TensorSpec, ...] = ()
    references: tuple[Reference, ...] = ()
    loan: int = 0
    """The number under which the sender holds the references of this message for the
    receiver, until that has confirmed; 0 without references."""


class Hello(_Message, tag=1, frozen=True):
    """The first message, which every endpoint sends to all others."""

    name: str
    max_bytes: int
    """The longest message that the sender of this one accepts."""


class Call(_Message, tag=2, frozen=True):
    """Run a registered function with ``arguments``, a pair of list and dict.

    With a ``reference`` the result stays with the receiver, under that name.
    """

    id: int
    function: str
    timeout_s: float
    arguments: Value
    reference: Reference | None = None

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """See _Message."""
        return self.arguments.tensors


class Fetch(_Message, tag=3, frozen=True):
    """Send the value of a reference as soon as it is there."""

    id: int
    reference: Reference
    timeout_s: float


class Result(_Message, tag=4, frozen=True):
    """The answer to a Call or Fetch."""

    id: int
    value: Value

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """See _Message."""
        return self.value.tensors


class Failure(_Message, tag=5, frozen=True):
    """The answer to a Call or Fetch that did not succeed."""

    id: int
    text: str
    kind: str = ""
    """The class of the exception that the function raised; empty: it was not run."""
    traceback: str = ""


class Add(_Message, tag=6, frozen=True):
    """The sender holds this reference from now on."""

    reference: Reference


class Added(_Message, tag=7, frozen=True):
    """The answer to Add."""

    reference: Reference


class Drop(_Message, tag=8, frozen=True):
    """The sender does not hold this reference any more."""

    reference: Reference


class Confirm(_Message, tag=9, frozen=True):
    """The sender holds everything that was lent to it under this number."""

    loan: int


class Done(_Message, tag=10, frozen=True):
    """The sender has called shutdown() and makes no more calls of its own."""


class Ended(_Message, tag=11, frozen=True):
    """The last message: the sender closes its connections now. Without it, a closed
    connection means that the sender was lost."""


Message = (
    Hello
    | Call
    | Fetch
    | Result
    | Failure
    | Add
    | Added
    | Drop
    | Confirm
    | Done
    | Ended
)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Message, tensor_bytes: int = 0) -> bytes:
    """Return head and body; the bytes of the tensors follow them on the link."""
    body = _encoder.encode(message)
    if len(body) > MAX_BODY_BYTES:
        raise ConfigError("rpc: 4 GiB besides tensors; send large data as tensors")
    return HEAD.pack(MAGIC, len(body), tensor_bytes) + body


def decode_head(data: bytes | memoryview, max_bytes: int, peer: int) -> tuple[int, int]:
    """Return the lengths of body and tensors; ProtocolError if they are too long."""
    magic, body_bytes, tensor_bytes = HEAD.unpack(data)
    if magic != MAGIC:
        raise ProtocolError(peer, f"RPC: a message begins with {magic!r}")
    total = body_bytes + tensor_bytes
    if not body_bytes or total > max_bytes:
        text = f"announced a message of {total} bytes; accepted are {max_bytes}"
        raise ProtocolError(peer, f"RPC: {text}")
    return body_bytes, tensor_bytes


def decode_body(data: bytes | bytearray | memoryview, peer: int) -> Message:
    """Return the message; ProtocolError if the bytes are anything else."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise ProtocolError(peer, f"RPC: invalid message: {exc}"[:300]) from None


def check_tensors(
    specs: tuple[TensorSpec, ...],
    sizes: dict[str, int],
    tensor_bytes: int,
    peer: int,
) -> None:
    """Raise ProtocolError unless the tensors exist and fill ``tensor_bytes``.

    ``sizes`` are the bytes of an element of each dtype.
    """
    if not specs and not tensor_bytes:
        return
    total = 0
    for dtype, shape in specs:
        if (
            dtype not in sizes
            or len(shape) > MAX_DIMENSIONS  # first: a product of many takes for ever
            or any(n < 0 for n in shape)
            or math.prod(max(n, 1) for n in shape) > MAX_ELEMENTS
        ):
            text = f"announced a tensor of {dtype[:32]!r} with shape {shape[:8]}"
            raise ProtocolError(peer, f"RPC: {text}")
        total += sizes[dtype] * math.prod(shape)
    if total != tensor_bytes:
        text = f"announced {tensor_bytes} bytes for tensors of {total} bytes"
        raise ProtocolError(peer, f"RPC: {text}")
