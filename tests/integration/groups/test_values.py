"""Every operation, algorithm, dtype and size against a float64 or integer reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ringleader.collectives.algorithm import algorithms
from ringleader.groups.group import Group, handle_of
from ringleader.testing.threaded_world import run_world

SIZES = (1, 2, 3, 5, pytest.param(8, marks=pytest.mark.slow))
"""Alone, a pair, powers of two and others; schedules are proven up to 17 ranks."""
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
PLACES = ["memory", "shm"]


def counts(size: int) -> list[int]:
    """Lengths around the number of ranks, primes, and one that is cut into many."""
    return sorted({0, 1, size - 1, size, size + 1, 7, 101, 10_007})


def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What ``rank`` brings: different on every rank, exact in every dtype."""
    base = torch.arange(count, dtype=torch.int64)
    numbers = (base * 7 + rank * 3) % 5 + 1
    if dtype is torch.bool:
        return (base + rank) % 3 == 0
    if dtype.is_complex:
        return torch.complex(numbers.double(), -(numbers + 1).double()).to(dtype)
    return numbers.to(dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the reference."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def reference(size: int, count: int, dtype: torch.dtype, op: str) -> torch.Tensor:
    """The exact result, computed without any of our code."""
    stack = torch.stack([values(r, count, dtype).to(wide(dtype)) for r in range(size)])
    if dtype is torch.bool:
        is_any = op in ("sum", "max", "bor")
        picked = stack.bool()
        if op == "bxor":
            return picked.sum(0) % 2 == 1
        return picked.any(0) if is_any else picked.all(0)
    if op in ("band", "bor", "bxor"):
        result = stack[0].clone()
        for row in stack[1:]:
            result = {
                "band": result & row,
                "bor": result | row,
                "bxor": result ^ row,
            }[op]
        return result
    if op == "mean":
        rounding = None if wide(dtype) != torch.int64 else "trunc"
        return torch.div(stack.sum(0), size, rounding_mode=rounding)
    if op == "sum":
        return stack.sum(0)
    if op == "product":
        return stack.prod(0)
    return stack.amin(0) if op == "min" else stack.amax(0)


def tolerance(dtype: torch.dtype) -> float:
    """Relative error that rounding to ``dtype`` at each of 8 ranks can cause."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    return 8 * torch.finfo(dtype).eps


def assert_close(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Compare in the reference's precision; integers wrap as the dtype does."""
    if not (got.dtype.is_floating_point or got.dtype.is_complex):
        assert torch.equal(got, want.to(got.dtype)), what
        return
    limit = tolerance(got.dtype)
    difference = (got.to(want.dtype) - want).abs()
    assert bool((difference <= limit * want.abs()).all()), what


def same_bits(results: list[torch.Tensor]) -> bool:
    """Whether all ranks ended with the same bits."""
    first = results[0].contiguous().view(-1).view(torch.uint8)
    others = (r.contiguous().view(-1).view(torch.uint8) for r in results[1:])
    return all(torch.equal(first, other) for other in others)


def all_reduce_names(place: str) -> list[str | None]:
    """The algorithms that can be asked for there; None leaves the choice open."""
    return [None, "shm"] if place == "shm" else [None, *algorithms("all_reduce")]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_is_right_for_every_algorithm_and_length(
    size: int, place: str
) -> None:
    """Compare with a reference: ranks could agree on a wrong value."""
    names = all_reduce_names(place)
    sums = {n: reference(size, n, torch.float32, "sum") for n in counts(size)}

    def body(group: Group) -> list[torch.Tensor]:
        results = []
        for name in names:
            for count, want in sums.items():
                tensor = values(group.rank, count, torch.float32)
                kept, out = tensor.clone(), torch.full_like(tensor, 77)
                group.all_reduce(tensor, out=out, algorithm=name)
                assert_close(out, want, f"{name} {count} out of place")
                assert torch.equal(tensor, kept), f"{name} {count} wrote its input"
                group.all_reduce(tensor, algorithm=name)
                assert_close(tensor, want, f"{name} {count} in place")
                results.append(tensor)
        return results

    for ranks in zip(*run_world(size, body, place), strict=True):
        assert same_bits(list(ranks))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *FLOATS, *COMPLEX])
def test_all_reduce_is_right_for_every_dtype_and_reduction(
    dtype: torch.dtype, place: str
) -> None:
    ops = ["sum", "product"]
    if not dtype.is_complex:
        ops += ["min", "max"]
    if dtype is not torch.bool:
        ops.append("mean")
    if not (dtype.is_floating_point or dtype.is_complex):
        ops += ["band", "bor", "bxor"]
    size = 3
    names = all_reduce_names(place)
    wants = {
        (op, count): reference(size, count, dtype, op)
        for op in ops
        for count in (1, 2, 1003)
    }

    def body(group: Group) -> list[torch.Tensor]:
        results = []
        for (op, count), want in wants.items():
            for name in names:
                tensor = values(group.rank, count, dtype)
                group.all_reduce(tensor, op, algorithm=name)
                assert_close(tensor, want, f"{dtype} {op} {count} {name}")
                results.append(tensor)
        return results

    for ranks in zip(*run_world(size, body, place), strict=True):
        assert same_bits(list(ranks))


@pytest.mark.parametrize("place", [*PLACES, "tcp"])
def test_large_lengths_are_right_for_every_algorithm(place: str) -> None:
    """1e6 + 3 elements cross every buffer, window and slot boundary."""
    size, count = 3, 1_000_003
    want = reference(size, count, torch.float32, "sum")

    def body(group: Group) -> list[torch.Tensor]:
        results = []
        for name in all_reduce_names(place):
            tensor = values(group.rank, count, torch.float32)
            group.all_reduce(tensor, algorithm=name)
            assert_close(tensor, want, str(name))
            results.append(tensor)
        return results

    for ranks in zip(*run_world(size, body, place), strict=True):
        assert same_bits(list(ranks))


def test_real_numbers_are_rounded_alike_on_all_ranks() -> None:
    """Sums that are not exact: close to float64, and equal to the bit everywhere."""
    size, count = 5, 4099
    rows = [
        torch.randn(count, generator=torch.Generator().manual_seed(r))
        for r in range(size)
    ]
    want = torch.stack(rows).double().sum(0)
    scale = torch.stack(rows).double().abs().sum(0)

    for place in PLACES:
        names = all_reduce_names(place)

        def body(group: Group, names: list[str | None] = names) -> list[torch.Tensor]:
            results = []
            for name in names:
                tensor = rows[group.rank].clone()
                group.all_reduce(tensor, algorithm=name)
                error = ((tensor.double() - want).abs() / scale).max()
                assert error < 1e-6, f"{name}: {error}"
                results.append(tensor)
            return results

        for ranks in zip(*run_world(size, body, place), strict=True):
            assert same_bits(list(ranks))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", SIZES)
def test_rooted_operations_are_right_from_every_root(size: int, place: str) -> None:
    """Every rank can be the root."""

    def names(operation: str) -> list[str | None]:
        return [None] if place == "shm" else [None, *algorithms(operation)]

    lengths = (0, 1, size + 1, 1003)
    sums = {n: reference(size, n, torch.float64, "sum") for n in lengths}

    def body(group: Group) -> None:
        for root in range(size):
            for count, want in sums.items():
                _check_broadcast(group, root, count, names("broadcast"))
                _check_reduce(group, root, want, names("reduce"))
                _check_gather_scatter(group, root, count, names("gather"))

    run_world(size, body, place)


def _check_broadcast(
    group: Group, root: int, count: int, names: list[str | None]
) -> None:
    for name in names:
        tensor = values(group.rank, count, torch.int32)
        group.broadcast(tensor, root, algorithm=name)
        want = values(root, count, torch.int32)
        assert torch.equal(tensor, want), f"broadcast {name} root {root} count {count}"


def _check_reduce(
    group: Group, root: int, want: torch.Tensor, names: list[str | None]
) -> None:
    count = want.numel()
    for name in names:
        tensor = values(group.rank, count, torch.float64)
        kept = tensor.clone()
        group.reduce(tensor, root, algorithm=name)
        if group.rank == root:
            assert torch.equal(tensor, want), f"reduce {name} root {root} {count}"
        else:
            assert torch.equal(tensor, kept), f"reduce {name} changed another rank's"


def _check_gather_scatter(
    group: Group, root: int, count: int, names: list[str | None]
) -> None:
    rows = [values(r, count, torch.int64) for r in range(group.size)]
    for name in names:
        is_root = group.rank == root
        outs = (
            [torch.zeros(count, dtype=torch.int64) for _ in rows] if is_root else None
        )
        group.gather(outs, rows[group.rank], root, algorithm=name)
        if outs is not None:
            assert all(torch.equal(a, b) for a, b in zip(outs, rows, strict=True)), name
        out = torch.zeros(count, dtype=torch.int64)
        group.scatter(out, rows if is_root else None, root, algorithm=name)
        assert torch.equal(out, rows[group.rank]), f"scatter {name} root {root}"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", SIZES)
def test_gathering_and_scattering_sums_are_right(size: int, place: str) -> None:
    def names(operation: str) -> list[str | None]:
        return [None] if place == "shm" else [None, *algorithms(operation)]

    lengths = (0, 1, 3, 1003, 70_001)
    sums = {n: reference(size, size * n, torch.float32, "sum") for n in lengths}

    def body(group: Group) -> None:
        for count, want in sums.items():
            rows = [values(r, count, torch.float32) for r in range(size)]
            for name in names("all_gather"):
                whole = torch.zeros(size * count)
                group.all_gather(whole, rows[group.rank], algorithm=name)
                assert torch.equal(whole, torch.cat(rows)), f"all_gather {name} {count}"
            source = values(group.rank, size * count, torch.float32)
            kept = source.clone()
            for name in names("reduce_scatter"):
                out = torch.zeros(count)
                group.reduce_scatter(out, source, algorithm=name)
                part = want[group.rank * count : (group.rank + 1) * count]
                assert_close(out, part, f"reduce_scatter {name} {count}")
                assert torch.equal(source, kept), (
                    f"reduce_scatter {name} wrote its input"
                )

    run_world(size, body, place)


@pytest.mark.parametrize("place", PLACES)
def test_uneven_lists_are_gathered_and_scattered(place: str) -> None:
    size = 4
    lengths = [0, 5, 200_003, 1]

    def body(group: Group) -> None:
        rows = [values(r, n, torch.float32) for r, n in enumerate(lengths)]
        outs = [torch.zeros(n) for n in lengths]
        group.all_gather(outs, rows[group.rank])
        assert all(torch.equal(a, b) for a, b in zip(outs, rows, strict=True))
        mine = [values(group.rank, n, torch.float32) for n in lengths]
        out = torch.zeros(lengths[group.rank])
        group.reduce_scatter(out, mine, "max")
        want = reference(size, lengths[group.rank], torch.float32, "max")
        assert_close(out, want, "uneven reduce_scatter")

    run_world(size, body, place)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", SIZES)
def test_all_to_all_is_right_even_and_uneven(size: int, place: str) -> None:
    def part(source: int, to: int, length: int) -> torch.Tensor:
        return torch.arange(length, dtype=torch.int64) + 1000 * source + 100 * to

    def body(group: Group) -> None:
        me = group.rank
        for length in (0, 1, 5, 40_001):
            source = torch.cat([part(me, to, length) for to in range(size)])
            out = torch.zeros_like(source)
            group.all_to_all(out, source)
            want = torch.cat([part(s, me, length) for s in range(size)])
            assert torch.equal(out, want), f"even {length}"

        def rows(source: int, to: int) -> int:
            return (source * 3 + to * 5) % 4 * 7001

        ins, outs = (
            [rows(me, p) for p in range(size)],
            [rows(p, me) for p in range(size)],
        )
        source = torch.cat([part(me, p, ins[p]) for p in range(size)])
        out = torch.zeros(sum(outs), dtype=torch.int64)
        group.all_to_all(out, source, out_splits=outs, in_splits=ins)
        want = torch.cat([part(p, me, outs[p]) for p in range(size)])
        assert torch.equal(out, want), "uneven"
        pieces = [torch.zeros(n, dtype=torch.int64) for n in outs]
        group.all_to_all(pieces, [part(me, p, ins[p]) for p in range(size)])
        assert torch.equal(torch.cat(pieces), want), "lists"

    run_world(size, body, place)


def test_hosts_of_unequal_size_weigh_what_they_should() -> None:
    """ZF-3: the mean over 3 + 1 ranks on two hosts is over ranks, not over hosts."""
    from dataclasses import replace

    from ringleader.collectives.cost_model import Network

    size = 4
    network = replace(Network.unknown(size), hosts=(0, 0, 0, 1))

    def body(group: Group) -> list[torch.Tensor]:
        handle_of(group).network = network
        results = []
        for op in ("sum", "mean", "max"):
            for count in (1, 1003):
                tensor = values(group.rank, count, torch.float64)
                group.all_reduce(tensor, op, algorithm="hierarchy")
                want = reference(size, count, torch.float64, op)
                assert torch.equal(tensor, want), f"{op} {count}"
                results.append(tensor)
                for root in range(size):
                    tensor = values(group.rank, count, torch.float64)
                    group.reduce(tensor, root, op, algorithm="hierarchy")
                    assert group.rank != root or torch.equal(tensor, want)
                whole = values(group.rank, size * count, torch.float64)
                out = torch.zeros(count, dtype=torch.float64)
                group.reduce_scatter(out, whole, op, algorithm="hierarchy")
                sums = reference(size, size * count, torch.float64, op)
                assert torch.equal(out, sums.view(size, count)[group.rank])
        return results

    run_world(size, body)


@pytest.mark.parametrize("place", ["memory", "tcp"])
def test_what_a_hierarchy_copies_arrives_from_everybody(place: str) -> None:
    """ZF-15: from every root, also where it is not the first rank of its host."""
    from dataclasses import replace

    from ringleader.collectives.cost_model import Network

    size = 5
    network = replace(Network.unknown(size), hosts=(0, 1, 0, 2, 1))

    def body(group: Group) -> None:
        handle_of(group).network = network
        for count in (1, 1003, 400_001):
            mine = [values(rank, count, torch.float64) for rank in range(size)]
            out = torch.zeros(size * count, dtype=torch.float64)
            group.all_gather(out, mine[group.rank], algorithm="hierarchy")
            assert torch.equal(out, torch.cat(mine))
            for root in range(size):
                tensor = mine[group.rank].clone()
                group.broadcast(tensor, root, algorithm="hierarchy")
                assert torch.equal(tensor, mine[root])

    run_world(size, body, place)


def test_halves_keep_special_values() -> None:
    """Infinities and NaN pass through every reduction without a warning."""

    def body(group: Group) -> None:
        for dtype in FLOATS:
            tensor = torch.tensor([1e4, float("inf"), float("nan"), -1.0]).to(dtype)
            for _ in range(4):
                group.all_reduce(tensor)
            assert torch.isnan(tensor[2])
            assert torch.isinf(tensor[1])

    run_world(2, body, "memory")
    run_world(2, body, "shm")


LARGE = 6 << 20
"""Elements: more of a chunk than windows and socket buffers hold together."""


@pytest.mark.parametrize("operation", ["reduce", "reduce_scatter", "gather", "scatter"])
def test_chunks_that_pass_through_find_room_however_large(operation: str) -> None:
    """A ring of reduce_scatter once waited for itself, from 24 MiB on."""
    size, root = 4, 1

    def body(group: Group) -> list[float]:
        mine = torch.full((LARGE,), float(group.rank + 1))
        part = torch.zeros(LARGE // size)
        found = []
        for name in algorithms(operation):
            how: dict[str, Any] = {"algorithm": name, "timeout_s": 200}
            tensor = mine.clone()
            if operation == "reduce":
                group.reduce(tensor, root, **how)
                found.append(float(tensor[-1]) if group.rank == root else 10.0)
            elif operation == "reduce_scatter":
                group.reduce_scatter(part, tensor, **how)
                found.append(float(part.max()) if part.min() == part.max() else -1)
            elif operation == "gather":
                outs = [torch.zeros_like(part) for _ in range(size)]
                group.gather(
                    outs if group.rank == root else None, mine[: len(part)], root, **how
                )
                total = sum(float(out[-1]) for out in outs)
                found.append(total if group.rank == root else 10.0)
            else:
                pieces = list(tensor.view(size, -1)) if group.rank == root else None
                group.scatter(part, pieces, root, **how)
                found.append(10.0 if bool((part == root + 1).all()) else -1)
        return found

    for found in run_world(size, body, "memory"):
        assert found == [10.0] * len(algorithms(operation))
