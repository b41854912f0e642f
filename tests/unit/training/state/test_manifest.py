"""Manifests and digests of other members are bounded and validated."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from ringleader.errors import LayoutMismatch
from ringleader.training.state import digests, manifest, value_tree
from ringleader.training.state.digests import Digests, digest_state
from ringleader.training.state.manifest import Entry, Layout, Manifest, difference
from ringleader.training.state.pieces import cut, share_out, size_of
from ringleader.training.state.replicated_state import ReplicatedState
from ringleader.training.state.verdict import Repair, find_repairs

SOUND = Manifest((Entry("model/w", "F32", (3, 5)),), b"")


def encoded(*entries: Entry, values: bytes = b"") -> bytes:
    return msgspec.msgpack.encode(Manifest(entries, values))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"tensors": 3}),
        msgspec.msgpack.encode({"tensors": [], "values": b"", "code": b"x"}),
        encoded(Entry("a", "F32", (-1,))),
        encoded(Entry("a", "OBJECT", (1,))),
        encoded(Entry("", "F32", (1,))),
        encoded(Entry("x" * 2000, "F32", (1,))),
        encoded(Entry("a", "F32", (1,)), Entry("a", "F32", (1,))),
        encoded(Entry("a", "F32", (1 << 40, 1 << 10))),
        encoded(Entry("a", "F32", (1,) * 40)),
        b"\x91" * 100_000,
    ],
)
def test_a_bad_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        manifest.decode_manifest(data)


def test_a_sound_manifest_comes_back() -> None:
    assert manifest.decode_manifest(manifest.encode(SOUND)) == SOUND
    with pytest.raises(ValueError, match="keep large data in tensors"):
        manifest.encode(Manifest((), bytes(manifest.MAX_BYTES)))


@pytest.mark.parametrize(
    "entries",
    [
        (Entry("model/weight", "F32", (3, 5)),),
        (Entry("model/weight", "F64", (3, 4)), Entry("model/bias", "F32", (3,))),
        (
            Entry("model/weight", "F32", (3, 4)),
            Entry("model/bias", "F32", (3,)),
            Entry("optimizer/other/exp_avg", "F32", (3,)),
        ),
        (
            Entry("model/weight", "F32", (3, 4)),
            Entry("model/bias", "F32", (3,)),
            Entry("optimizer/bias/exp_avg", "F32", (1 << 30,)),
        ),
    ],
)
def test_nothing_is_allocated_for_tensors_that_do_not_belong_here(
    entries: tuple[Entry, ...],
) -> None:
    model = nn.Linear(4, 3)
    state = ReplicatedState(model, torch.optim.Adam(model.parameters()))
    with pytest.raises(LayoutMismatch):
        state.targets(Manifest(entries, b""))


@pytest.mark.parametrize("values", [b"", b"\x80", b"\xc1", b"\x81\xa5model\x01"])
def test_damaged_values_raise_a_typed_error(values: bytes) -> None:
    model = nn.Linear(4, 3)
    state = ReplicatedState(model, torch.optim.SGD(model.parameters(), 0.1))
    found, tensors = state.snapshot()
    with pytest.raises(LayoutMismatch):
        state.adopt(Manifest(found.tensors, values), tensors)


def test_the_layout_has_flags_of_the_algorithm_but_not_of_the_implementation() -> None:
    model = nn.Linear(4, 3)

    def state(**options: Any) -> ReplicatedState:  # noqa: ANN401
        return ReplicatedState(model, torch.optim.Adam(model.parameters(), **options))

    plain, fused, other = state(), state(fused=True), state(amsgrad=True)
    assert plain.layout().digest() == fused.layout().digest()
    assert plain.fingerprint() != fused.fingerprint()
    assert "amsgrad=False (group 0) here, amsgrad=True (group 0) there" in difference(
        plain.layout(), other.layout()
    )
    assert plain.fingerprint() == state().fingerprint()


def test_differences_are_named_and_few() -> None:
    mine = Layout("Adam", (), (("a",),), (Entry("a", "F32", (2,)),))
    theirs = Layout("SGD", (), (("b", "c"),), (Entry("b", "F32", (2,)),))
    text = difference(mine, theirs)
    assert "the optimizer is Adam here, SGD there" in text
    assert "a F32[2] is only here" in text
    assert text.endswith("and 1 more")
    assert difference(mine, mine) == ""
    swapped = Layout("Adam", (), (), (Entry("a", "F32", ()), Entry("b", "F32", ())))
    again = Layout("Adam", (), (), (Entry("b", "F32", ()), Entry("a", "F32", ())))
    assert "another order" in difference(swapped, again)


def test_pieces_cover_every_byte_once_and_are_shared_out_by_size() -> None:
    entries = [
        Entry("large", "F32", (2_500_003,)),
        Entry("none", "F32", (0,)),
        *(Entry(f"small {i}", "F16", (i,)) for i in range(1, 400)),
    ]
    pieces = cut(entries, 1 << 16)
    seen: dict[str, int] = {}
    for piece in pieces:
        assert 0 < size_of(piece) <= 1 << 16
        for span in piece:
            assert span.begin == seen.get(span.name, 0)
            seen[span.name] = span.begin + span.num_bytes
    assert seen == {e.name: e.num_bytes for e in entries if e.num_bytes}
    chosen = share_out(map(size_of, pieces), 3)
    loads = [
        sum(size_of(p) for p, c in zip(pieces, chosen, strict=True) if c == source)
        for source in range(3)
    ]
    assert max(loads) - min(loads) <= 1 << 16


def test_digests_name_the_tensor_with_one_changed_bit() -> None:
    entries = (Entry("a", "F32", (1_100_000,)), Entry("b", "I64", (3,)))
    tensors = {"a": torch.zeros(1_100_000), "b": torch.arange(3)}
    before = digest_state(entries, tensors, b"x")
    assert before == digest_state(entries, tensors, b"x")
    tensors["a"].view(torch.int32)[1_099_999] ^= 1
    after = digest_state(entries, tensors, b"x")
    assert [n for n in before.parts if before.parts[n] != after.parts[n]] == ["a"]
    assert before.root != after.root


@pytest.mark.parametrize("parts", [{"a": b"short"}, {"a": "text"}, 3])
def test_bad_digests_are_refused(parts: object) -> None:
    with pytest.raises(ValueError, match=r"digest"):
        digests.decode(msgspec.msgpack.encode({"parts": parts}))


def test_the_majority_of_sources_decides_and_a_tie_goes_to_the_first() -> None:
    def state(**parts: bytes) -> Digests:
        return Digests(parts)

    found = find_repairs(
        {
            0: state(a=b"1", b=b"1"),
            2: state(a=b"2", b=b"2"),
            3: state(a=b"2", b=b"1"),
            5: state(a=b"2"),
        },
        (0, 2, 3),
    )
    assert found == [Repair("a", 2, 0), Repair("b", 0, 2), Repair("b", 0, 5)]
    tie = find_repairs({0: state(a=b"2"), 1: state(a=b"1")}, (0, 1))
    assert tie == [Repair("a", 0, 1)]


def test_trees_give_up_their_tensors_and_get_them_back() -> None:
    large = torch.arange(400.0)
    tree = {"a": [1, (large, "x")], "small": torch.ones(2), 3: {"deep": large * 2}}
    skeleton, tensors = value_tree.split(tree, "extra")
    assert list(tensors) == ["extra/a/1/0", "extra/3/deep"]
    joined = value_tree.join(skeleton, tensors)
    assert joined["a"][1][0] is large
    assert joined[3]["deep"] is tensors["extra/3/deep"]
    with pytest.raises(ValueError, match="was sent"):
        value_tree.join(skeleton, {})
