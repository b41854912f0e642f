"""Bodies are read back as written, and anything else is refused."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from ringleader.errors import ConfigError, ProtocolError
from ringleader.paramserver.protocol import bodies, compressed_body
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.compressed_body import FRAMES
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.server.global_weights import GlobalWeights
from ringleader.paramserver.server.outer_optimizer import OuterOptimizer
from ringleader.paramserver.server.update_checks import check_update
from ringleader.wire import tensor_file

MODEL = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 10))
MANIFEST = Manifest.of(MODEL)


def update(seed: int = 0) -> Update:
    chance = np.random.default_rng(seed)
    return Update(
        chance.standard_normal(MANIFEST.num_parameters).astype(np.float32),
        chance.standard_normal(MANIFEST.num_buffers).astype(np.float32),
    )


def wire(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def plain(**changes: object) -> bytes:
    """Build a body of codec none with a changed header."""
    total, rest = MANIFEST.num_parameters, MANIFEST.num_buffers
    header: dict[str, object] = {
        "parameters": {
            "dtype": "F32",
            "shape": [total],
            "data_offsets": [0, 4 * total],
        },
        "buffers": {
            "dtype": "F32",
            "shape": [rest],
            "data_offsets": [4 * total, 4 * (total + rest)],
        },
    }
    header |= changes
    return wire(header, bytes(4 * (total + rest)))


@pytest.mark.parametrize(
    ("codec", "lost"),
    [
        ("none", 0.0),
        ("bf16", 0.004),
        ("fp16", 0.001),
        ("int8", 0.012),
        ("int8-stochastic:3", 0.02),
        ("onebit", 0.7),
        ("topk:0.3", 0.7),
    ],
)
def test_updates_are_decoded_within_the_error_of_their_codec(
    codec: str, lost: float
) -> None:
    sent = update()
    body = bodies.pack_update(MANIFEST, sent, codec)
    assert len(body) <= bodies.max_update_bytes(MANIFEST)
    got = bodies.read_update(MANIFEST, bytearray(body), bodies.wire_name(codec))
    missing = np.linalg.norm(got.parameters - sent.parameters)
    assert missing <= lost * np.linalg.norm(sent.parameters)
    assert np.array_equal(got.buffers, sent.buffers)


@pytest.mark.parametrize("codec", bodies.WEIGHTS_CODECS)
def test_weights_are_decoded(codec: str) -> None:
    tensors = MANIFEST.tensors(MODEL)
    got = bodies.read_weights(
        MANIFEST, bodies.pack_weights(MANIFEST, tensors, codec), codec
    )
    for name, tensor in tensors.items():
        torch.testing.assert_close(got[name], tensor, rtol=0.01, atol=0)
        exact = codec == "none" or name in {e.name for e in MANIFEST.others}
        assert not exact or torch.equal(got[name], tensor)


def test_weights_are_ordinary_safetensors() -> None:
    tensors = MANIFEST.tensors(MODEL)
    body = bodies.pack_weights(MANIFEST, tensors)
    read = safetensors.torch.load(bytes(compressed_body.unpack(body, 1 << 20)))
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    theirs = safetensors.torch.save({n: t.clone() for n, t in tensors.items()})
    ours = bodies.read_weights(MANIFEST, theirs)
    assert all(torch.equal(ours[name], tensors[name]) for name in tensors)


def test_compressible_bodies_are_compressed_and_noise_is_not() -> None:
    zeros = Update(np.zeros(MANIFEST.num_parameters, np.float32), update().buffers)
    assert bodies.pack_update(MANIFEST, zeros)[:4] == compressed_body.MAGIC
    body = bodies.pack_update(MANIFEST, update())
    assert body[:4] != compressed_body.MAGIC


def _torch_save() -> bytes:
    file = io.BytesIO()
    torch.save({"parameters": torch.zeros(4)}, file)
    return file.getvalue()


TOTAL = MANIFEST.num_parameters
INVALID = {
    "nothing": b"",
    "a byte": b"\0",
    "zeros": bytes(64),
    "pickle": pickle.dumps({"parameters": [1.0] * 50}),
    "torch.save": _torch_save(),
    "gzip": zlib.compress(bytes(10**6), wbits=31),
    "header without end": struct.pack("<Q", 2**40) + b"{}",
    "header longer than the body": struct.pack("<Q", 5000) + b"{}",
    "no object": wire([1, 2], b""),
    "deep": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "not text": struct.pack("<Q", 4) + b'{"\xff\xfe',
    "nobody": wire({}, b""),
    "another name": plain(other={"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
    "another shape": plain(
        parameters={
            "dtype": "F32",
            "shape": [TOTAL, 1],
            "data_offsets": [0, 4 * TOTAL],
        }
    ),
    "another dtype": plain(
        parameters={"dtype": "I32", "shape": [TOTAL], "data_offsets": [0, 4 * TOTAL]}
    ),
    "overlapping": plain(
        buffers={
            "dtype": "F32",
            "shape": [MANIFEST.num_buffers],
            "data_offsets": [0, 4 * MANIFEST.num_buffers],
        }
    ),
    "huge shape": plain(
        parameters={
            "dtype": "F32",
            "shape": [2**62, 2**62],
            "data_offsets": [0, 4 * TOTAL],
        }
    ),
    "negative": plain(
        parameters={"dtype": "F32", "shape": [-TOTAL], "data_offsets": [0, 4]}
    ),
    "too long": plain() + b"\0",
    "too short": plain()[:-1],
    "half a frame": compressed_body.compress(plain())[:-4],
    "a frame and more": compressed_body.compress(plain()) + b"x",
    "two frames": 2 * compressed_body.compress(plain()),
    "no frame": compressed_body.MAGIC + b"\xff" * 40,
    "half of gzip": gzip.compress(plain())[:-4],
    "gzip with a wrong sum": gzip.compress(plain())[:-8] + bytes(8),
    "gzip and more": gzip.compress(plain()) + b"x",
    "two members of gzip": 2 * gzip.compress(plain()),
    "no gzip": b"\x1f\x8b\x08" + b"\xff" * 40,
    "gzip of zstd": gzip.compress(compressed_body.compress(plain())),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_bodies_are_refused_in_every_codec(name: str) -> None:
    for codec in bodies.CODECS:
        with pytest.raises(ProtocolError):
            bodies.read_update(MANIFEST, bytearray(INVALID[name]), codec)
    with pytest.raises(ProtocolError):
        bodies.read_weights(MANIFEST, INVALID[name])


@pytest.mark.parametrize("codec", bodies.CODECS)
def test_cut_and_changed_bodies_never_raise_anything_else(codec: str) -> None:
    chance = np.random.default_rng(1)
    name = {"topk": "topk:0.1"}.get(codec, codec)
    whole = bodies.pack_update(MANIFEST, update(), name)
    for _ in range(300):
        body = bytearray(whole)
        for place in chance.integers(0, min(len(body), 400), 3):
            body[place] = int(chance.integers(0, 256))
        body = body[: int(chance.integers(1, len(body) + 1))]
        try:
            read = bodies.read_update(MANIFEST, body, codec)
        except ProtocolError:
            continue
        assert read.parameters.shape == (TOTAL,)


@pytest.mark.parametrize(
    "bomb",
    [compressed_body.compress(bytes(64 << 20), 19), gzip.compress(bytes(64 << 20))],
    ids=["zstd", "gzip"],
)
def test_a_decompression_bomb_is_stopped_at_the_limit(bomb: bytes) -> None:
    assert len(bomb) < 70_000
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="more than"):
        bodies.read_update(MANIFEST, bytearray(bomb), "none")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


def test_gzip_stands_for_zstd_where_a_client_has_none() -> None:
    """A header of safetensors with the first bytes of gzip is no gzip."""
    sent = update()
    body = bodies.pack_update(MANIFEST, sent)
    found = bodies.read_update(MANIFEST, gzip.compress(body), "none")
    assert np.array_equal(found.parameters, sent.parameters)

    tensors = MANIFEST.tensors(nn.Sequential(*MODEL))
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    kinds = {f: bodies.pack_weights(MANIFEST, zeros, "none", f) for f in FRAMES}
    assert bytes(kinds["gzip"][:3]) == b"\x1f\x8b\x08"
    assert gzip.decompress(kinds["gzip"]) == bytes(kinds["none"])
    assert kinds["zstd"][:4] == compressed_body.MAGIC
    for kind in kinds.values():
        assert bodies.read_weights(MANIFEST, kind).keys() == zeros.keys()

    plain = struct.pack("<Q", 0x088B1F) + b"{}".ljust(0x088B1F)
    assert compressed_body.unpack(plain, 1 << 20) == plain


def test_a_frame_that_wants_a_large_window_is_refused() -> None:
    head = bytes([0x28, 0xB5, 0x2F, 0xFD, 0x00, (27 - 10) << 3])
    with pytest.raises(ValueError, match="frame"):
        compressed_body.unpack(head + b"\x01\x00\x00", 1 << 20)


@pytest.mark.parametrize("places", [[3, 2], [2, 2], [0, TOTAL], [0, 65535]], ids=str)
def test_sparse_places_must_ascend_inside_the_vector(places: list[int]) -> None:
    data = struct.pack("<I2f2H", 2, 1.0, 1.0, *places)
    rest = 4 * MANIFEST.num_buffers
    size = len(data)
    header = {
        "entries": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
        "buffers": {
            "dtype": "F32",
            "shape": [MANIFEST.num_buffers],
            "data_offsets": [size, size + rest],
        },
    }
    with pytest.raises(ProtocolError):
        bodies.read_update(MANIFEST, wire(header, data + bytes(rest)), "topk")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_values_that_would_ruin_a_model_are_refused(value: float) -> None:
    sent = update()
    sent.parameters[7] = value
    with pytest.raises(ProtocolError, match="refused"):
        check_update(MANIFEST, bodies.pack_update(MANIFEST, sent), "none")
    sent = update()
    sent.buffers[0] = value
    with pytest.raises(ProtocolError, match="refused"):
        check_update(MANIFEST, bodies.pack_update(MANIFEST, sent), "none")


def test_codecs_that_do_not_exist_are_refused() -> None:
    for wrong in ("gzip", "topk:2", "topk:x", "int8:4"):
        with pytest.raises(ConfigError):
            bodies.pack_update(MANIFEST, update(), wrong)
    with pytest.raises(ProtocolError):
        bodies.read_update(MANIFEST, plain(), "pickle")


def test_models_that_cannot_be_sent_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'weight' is torch\.float64"):
        Manifest.of(nn.Linear(2, 2).double())
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter"):
        Manifest.of(frozen)


def test_tied_weights_are_sent_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3)
            self.two = nn.Linear(3, 3)
            self.two.weight = self.one.weight

    assert [e.name for e in Manifest.of(Tied()).entries] == [
        "one.weight",
        "one.bias",
        "two.bias",
    ]


def _mean(updates: list[tuple[Update, int]], pick: str) -> NDArray[np.float64]:
    total = sum(n for _, n in updates)
    vectors = [getattr(u, pick).astype(np.float64) * n for u, n in updates]
    mean: NDArray[np.float64] = np.sum(vectors, axis=0) / total
    return mean


def test_a_round_is_one_step_with_the_mean_weighted_by_samples() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    twin = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    twin.load_state_dict(model.state_dict())
    weights = GlobalWeights(model, _momentum, is_difference=False)
    known = weights.manifest
    optimizer = _momentum(twin)
    chance = np.random.default_rng(0)
    for factor in (1.0, 2.0, 2.0):
        updates = []
        for samples in (32, 7):
            parameters = chance.standard_normal(known.num_parameters)
            buffers = np.ones(known.num_buffers, np.float32) * samples
            one = Update(parameters.astype(np.float32), buffers)
            updates.append((one, samples))
            weights.add("w1", one, samples)
        weights.apply(factor)
        mean = _mean(updates, "parameters").astype(np.float32)
        for name, part in known.split(mean).items():
            dict(twin.named_parameters())[name].grad = torch.from_numpy(part)
        optimizer.param_groups[0]["lr"] = 0.1 * factor
        optimizer.step()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    moved = 3 * (32 * 32 + 7 * 7) / 39
    torch.testing.assert_close(model[1].running_mean, torch.full((4,), moved))
    assert model[1].num_batches_tracked == 3 * round(moved / 3)


def _momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_differences_are_averaged_or_drive_an_outer_optimizer() -> None:
    for outer, gain in (
        (OuterOptimizer(), 1.0),
        (OuterOptimizer(rate=0.5, momentum=0.9), 0.5),
    ):
        model = nn.Linear(3, 2)
        before = [p.detach().clone() for p in model.parameters()]
        weights = GlobalWeights(model, outer.make, is_difference=True)
        ones = np.ones(weights.manifest.num_parameters, np.float32)
        weights.add("w1", Update(ones * 3, np.zeros(0, np.float32)), 1)
        weights.add("w1", Update(ones * 1, np.zeros(0, np.float32)), 1)
        weights.apply(1.0)
        for then, now in zip(before, model.parameters(), strict=True):
            torch.testing.assert_close(now.detach(), then + 2.0 * gain)
    with pytest.raises(ConfigError):
        OuterOptimizer(nesterov=True)


def test_a_file_is_never_longer_than_it_may_be() -> None:
    specs = {"a" * 500: tensor_file.TensorSpec("F32", (1, 2, 3, 4)), "b": RANK0}
    parts = [
        tensor_file.TensorData(n, f, memoryview(bytes(f.num_bytes)))
        for n, f in specs.items()
    ]
    file = b"".join(tensor_file.write(parts))
    assert len(file) <= tensor_file.max_bytes(specs)
    assert tensor_file.read(memoryview(file), specs).keys() == specs.keys()


RANK0 = tensor_file.TensorSpec("I64", ())


def test_a_buffer_with_infinities_is_refused_by_name() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    with pytest.raises(ConfigError, match=r"'mask'.*persistent=False"):
        Manifest.of(model)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]), persistent=False)
    Manifest.of(model)
