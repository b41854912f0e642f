"""Encodes updates and weights as bodies, and decodes them; docs/internet-protocol.md.

Bytes from the network raise ProtocolError and nothing else, whatever they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ringleader.codec import registry as codecs
from ringleader.codec.codec import Codec
from ringleader.codec.sparse_chunks import SparseChunks
from ringleader.compression import sparse_format as sparse
from ringleader.compression.topk import topk_count, topk_indices
from ringleader.errors import ConfigError, ProtocolError
from ringleader.paramserver.protocol import compressed_body
from ringleader.paramserver.protocol.manifest import DTYPES, Manifest, Vector
from ringleader.wire import tensor_file
from ringleader.wire.tensor_file import TensorData, TensorSpec

CODECS = ("none", "bf16", "fp16", "int8", "onebit", "topk", "sparseloco")
"""Codecs of updates."""
WEIGHTS_CODECS = ("none", "bf16", "fp16")
"""Codecs of weights."""

_PARAMETERS = "parameters"
_ENTRIES = "entries"
_BUFFERS = "buffers"
_TOPK = "topk"
_DEFAULT_RATIO = 0.01
MAX_RATIO = 0.4
"""Largest ratio of top-k. Half of the values would take more bytes than all of them,
and the sampled threshold may let through a quarter more than the ratio."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Update:
    """The result of a worker: one vector for parameters, one for buffers."""

    parameters: Vector
    buffers: Vector


def wire_name(codec: str) -> str:
    """Return the name in ``X-Codec`` for a codec that may have a ratio: topk:0.01."""
    base = codec.partition(":")[0]
    is_own = base in ("none", _TOPK) or codec == SparseChunks.name
    name = base if is_own else codecs.wire_name(codec)
    if name == _TOPK:
        _ratio(codec)
    return name


def pack_update(manifest: Manifest, update: Update, codec: str = "none") -> bytes:
    """Encode an update as a body; ``codec`` may be none, int8, topk:0.01 and so on."""
    name = wire_name(codec)
    values = np.ascontiguousarray(update.parameters, np.float32)
    if name == "none":
        part = TensorData(_PARAMETERS, TensorSpec("F32", (len(values),)), _view(values))
    elif name == _TOPK:
        data = _sparse(values, _ratio(codec))
        part = TensorData(_ENTRIES, TensorSpec("U8", (len(data),)), _view(data))
    else:
        data = _encode(values, codec)
        part = TensorData(_PARAMETERS, TensorSpec("U8", (len(data),)), _view(data))
    parts = [part]
    if manifest.num_buffers:
        buffers = np.ascontiguousarray(update.buffers, np.float32)
        parts.append(
            TensorData(_BUFFERS, TensorSpec("F32", (len(buffers),)), _view(buffers))
        )
    return bytes(compressed_body.pack(tensor_file.write(parts)))


def max_update_bytes(manifest: Manifest) -> int:
    """Return the largest size of the body of an update, in any codec."""
    most = max(max_bytes(manifest, name) for name in CODECS)
    return most + most // 128 + 4096  # a frame of noise is a little longer than it


def max_bytes(manifest: Manifest, codec: str) -> int:
    """Return the largest size of an update without its frame."""
    total = manifest.num_parameters
    if codec == _TOPK:
        length = sparse.num_bytes(total, _max_entries(total))
        return tensor_file.max_bytes(
            _specs(manifest, _ENTRIES, TensorSpec("U8", (length,)))
        )
    return tensor_file.max_bytes(_update_specs(manifest, codec))


def read_update(
    manifest: Manifest, body: bytes | bytearray | memoryview, codec: str
) -> Update:
    """Decode the body of an update; ProtocolError if it is not valid."""
    if codec not in CODECS:
        raise ProtocolError("the worker", f"there is no codec {codec[:40]!r}")
    try:
        file = compressed_body.unpack(body, max_bytes(manifest, codec))
        if codec == _TOPK:
            return _read_sparse(manifest, file)
        found = tensor_file.read(file, _update_specs(manifest, codec))
        data = np.frombuffer(found[_PARAMETERS], np.uint8)
        values = _decode(data, manifest.num_parameters, codec)
        return Update(values, _buffers(manifest, found))
    except ValueError as exc:
        raise ProtocolError("the worker", f"update refused: {exc}") from exc


def pack_weights(
    manifest: Manifest,
    tensors: dict[str, Tensor],
    codec: str = "none",
    frame: str = "zstd",
) -> memoryview:
    """Encode weights as a body."""
    parts = []
    if codec != "none":
        data = _encode(manifest.gather(tensors), codec)
        parts.append(
            TensorData(_PARAMETERS, TensorSpec("U8", (len(data),)), _view(data))
        )
    for entry in manifest.entries if codec == "none" else manifest.others:
        spec = TensorSpec(DTYPES[entry.dtype], entry.shape)
        raw = tensors[entry.name].contiguous().reshape(-1).view(torch.uint8).numpy()
        parts.append(TensorData(entry.name, spec, _view(raw)))
    return compressed_body.pack(tensor_file.write(parts), frame)


def read_weights(
    manifest: Manifest, body: bytes | bytearray | memoryview, codec: str = "none"
) -> dict[str, Tensor]:
    """Decode a body of weights to tensors by name; ProtocolError if it is not valid."""
    specs = _weights_specs(manifest, codec)
    try:
        file = compressed_body.unpack(body, tensor_file.max_bytes(specs))
        found = tensor_file.read(file, specs)
        return _tensors(manifest, found, codec)
    except ValueError as exc:
        raise ProtocolError("the server", f"weights refused: {exc}") from exc


def _tensors(
    manifest: Manifest, found: dict[str, memoryview], codec: str
) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    if codec != "none":
        data = np.frombuffer(found[_PARAMETERS], np.uint8)
        values = _decode(data, manifest.num_parameters, codec)
        for name, part in manifest.split(values).items():
            tensors[name] = torch.from_numpy(part)
    for entry in manifest.entries if codec == "none" else manifest.others:
        raw = np.frombuffer(found[entry.name], np.uint8).copy()
        tensors[entry.name] = torch.from_numpy(raw).view(entry.dtype).view(entry.shape)
    if not all(t.isfinite().all() for t in tensors.values() if t.is_floating_point()):
        raise ValueError("a value is not finite")
    return tensors


def _weights_specs(manifest: Manifest, codec: str) -> dict[str, TensorSpec]:
    if codec not in WEIGHTS_CODECS:
        raise ConfigError(
            f"weights_codec: {codec} is none of {', '.join(WEIGHTS_CODECS)}"
        )
    named = manifest.entries if codec == "none" else manifest.others
    specs = {e.name: TensorSpec(DTYPES[e.dtype], e.shape) for e in named}
    if codec != "none":
        length = codecs.make_codec(codec).num_bytes(manifest.num_parameters)
        specs[_PARAMETERS] = TensorSpec("U8", (length,))
    return specs


def _update_specs(manifest: Manifest, codec: str) -> dict[str, TensorSpec]:
    total = manifest.num_parameters
    if codec == "none":
        return _specs(manifest, _PARAMETERS, TensorSpec("F32", (total,)))
    length = _make_codec(codec).num_bytes(total)
    return _specs(manifest, _PARAMETERS, TensorSpec("U8", (length,)))


def _specs(manifest: Manifest, name: str, spec: TensorSpec) -> dict[str, TensorSpec]:
    specs = {name: spec}
    if manifest.num_buffers:
        specs[_BUFFERS] = TensorSpec("F32", (manifest.num_buffers,))
    return specs


def _read_sparse(manifest: Manifest, file: memoryview) -> Update:
    """Decode sparse values. Their number follows from the length, which is bounded."""
    total = manifest.num_parameters
    head = tensor_file.max_bytes(_specs(manifest, _ENTRIES, TensorSpec("U8", (0,))))
    found = _read_any_length(manifest, file, len(file) - 4 * manifest.num_buffers, head)
    data = np.frombuffer(found[_ENTRIES], np.uint8)
    count, rest = divmod(len(data) - sparse.num_bytes(total, 0), sparse.ENTRY_BYTES)
    if rest or not 0 <= count <= _max_entries(total):
        raise ValueError(f"{len(data)} bytes are not entries of {total} values")
    try:
        chosen = sparse.unpack(data.copy(), total, count, peer=0)
    except ProtocolError as exc:
        raise ValueError(exc.text) from None
    values = np.zeros(total, np.float32)
    values[chosen.indices] = chosen.values
    return Update(values, _buffers(manifest, found))


def _read_any_length(
    manifest: Manifest, file: memoryview, most: int, head: int
) -> dict[str, memoryview]:
    """Read a file whose first tensor takes the rest of its length."""
    length = int.from_bytes(file[:8], "little")
    size = most - 8 - length
    if size < 0 or length > head:
        raise ValueError("not safetensors: the length of its header is impossible")
    return tensor_file.read(file, _specs(manifest, _ENTRIES, TensorSpec("U8", (size,))))


def _max_entries(total: int) -> int:
    """Return the most entries: half of the values take as many bytes as all."""
    return -(-total // 2)


def _buffers(manifest: Manifest, found: dict[str, memoryview]) -> Vector:
    if not manifest.num_buffers:
        return np.zeros(0, np.float32)
    return np.frombuffer(found[_BUFFERS], "<f4").astype(np.float32, copy=False)


def _encode(values: Vector, codec: str) -> Bytes:
    coder = _make_codec(codec)
    data = np.empty(coder.num_bytes(len(values)), np.uint8)
    coder.encode(values, data)
    return data


def _decode(data: Bytes, count: int, codec: str) -> Vector:
    if codec == "none":
        return data.view("<f4").astype(np.float32, copy=False)
    values = np.empty(count, np.float32)
    # torch warns of read-only memory, which bytes are.
    _make_codec(codec).decode(data if data.flags.writeable else data.copy(), values)
    return values


def _make_codec(name: str) -> Codec:
    """Create a codec; sparseloco is for updates only, not for sums that are relayed."""
    return SparseChunks() if name == SparseChunks.name else codecs.make_codec(name)


def _sparse(values: Vector, ratio: float) -> Bytes:
    count = topk_count(ratio, len(values))
    places = topk_indices(torch.from_numpy(values), count, exact=False).numpy()
    return sparse.pack(sparse.SparseVector(places, values[places]), len(values))


def _ratio(codec: str) -> float:
    text = codec.partition(":")[2]
    try:
        ratio = float(text) if text else _DEFAULT_RATIO
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= MAX_RATIO:
        text = f"write it like topk:0.01, above 0 up to {MAX_RATIO}"
        raise ConfigError(f"codec {codec!r}: {text}")
    return ratio


def _view(array: NDArray[np.generic]) -> memoryview:
    return array.data.cast("B")
