"""The reducer of every scheme: it turns the gradients of all ranks into their mean.

A reducer leaves the same bits in ``bucket.out`` on all ranks, and in
``bucket.new_residual`` the part of this rank's total that was not applied.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import seeded_random
from ringleader.compression.bucket import Bucket, all_finite, read_at, write_at
from ringleader.compression.communicator import Communicator
from ringleader.compression.compressor_state import ParameterSlice
from ringleader.compression.powersgd import PowerSgdReducer
from ringleader.compression.scheme import Method, Scheme
from ringleader.compression.sparse_all_reduce import SparseAllReduce
from ringleader.compression.sparse_cost import (
    SparseAlgorithm,
    choose_sparse_algorithm,
)
from ringleader.compression.sparse_format import SparseVector
from ringleader.compression.topk import topk_count, topk_indices
from ringleader.engine.arrays import as_array


class Reducer(Protocol):
    """Averages buckets by one method."""

    def reduce(self, bucket: Bucket, comm: Communicator) -> None:
        """Turn ``bucket.out`` into the mean over all ranks."""
        ...


class DenseReducer:
    """Sends all values as float32."""

    def reduce(self, bucket: Bucket, comm: Communicator) -> None:
        """Average by one all_reduce."""
        _average_dense(bucket, comm)


def _average_dense(bucket: Bucket, comm: Communicator) -> None:
    bucket.accumulate_in_place()
    comm.average(bucket.out)
    bucket.clear_all()


class CodecReducer:
    """Sends all values through a codec, which also decides what NaN becomes."""

    def __init__(self, codec: str) -> None:
        self._codec = codec

    def reduce(self, bucket: Bucket, comm: Communicator) -> None:
        """Average by one all_reduce with the codec inside."""
        codec = self._codec
        if codec == "int8-stochastic":  # a repeated step rounds the same way
            codec = f"{codec}:{bucket.derive_seed(bucket.parameters[0].name)}"
        residual = bucket.flat_residual() if comm.accepts_residual else None
        total = bucket.out if residual is not None else bucket.accumulate_in_place()
        comm.average_coded(total, codec, residual, bucket.new_residual)


class TopKReducer:
    """Sends the largest values of each parameter; inf and NaN count as the largest."""

    def __init__(self, ratio: float, *, exact: bool) -> None:
        self._ratio = ratio
        self._exact = exact
        self._all_reduce = SparseAllReduce()

    def reduce(self, bucket: Bucket, comm: Communicator) -> None:
        """Average by a sparse all_reduce, or a dense one if that is fewer bytes."""
        parameters = bucket.parameters
        count = sum(topk_count(self._ratio, param.numel) for param in parameters)
        algorithm, _ = choose_sparse_algorithm(len(bucket.out), count, comm.size)
        if algorithm is SparseAlgorithm.DENSE:
            _average_dense(bucket, comm)
            return
        total = bucket.accumulate()
        indices = torch.cat(
            [self._select(total, param, bucket) for param in parameters]
        )
        values = read_at(total, indices)
        bucket.clear_at(indices, is_finite=all_finite(values))
        array = as_array(values)
        array /= np.float32(comm.size)
        mine = SparseVector(as_array(indices.cpu()), array)
        self._all_reduce.run(mine, bucket.out, comm)

    def _select(self, total: Tensor, param: ParameterSlice, bucket: Bucket) -> Tensor:
        return param.start + topk_indices(
            total[param.span],
            topk_count(self._ratio, param.numel),
            exact=self._exact,
            offset=bucket.derive_seed(param.name),
        )


class RandomKReducer:
    """Sends a random share of each parameter, the same indices on all ranks.

    Values are not divided by the share, as an unbiased estimate would be: error
    feedback sends the other values later, and they would count twice. If a parameter
    has a value that is not finite, all its sent values are NaN, so that it is noticed.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio

    def reduce(self, bucket: Bucket, comm: Communicator) -> None:
        """Average by one all_reduce of the values; all ranks know the indices."""
        total = bucket.accumulate()
        drawn = [self._draw(param, bucket) for param in bucket.parameters]
        indices = torch.cat(drawn)
        device_indices = indices.to(total.device)
        values = read_at(total, device_indices)
        is_finite = all_finite(total)
        if not is_finite:
            edges = [0, *accumulate(map(len, drawn))]
            bounds = zip(bucket.parameters, edges[:-1], edges[1:], strict=True)
            for param, a, b in bounds:
                if not all_finite(total[param.span]):
                    values[a:b] = torch.nan
        bucket.clear_at(device_indices, is_finite=is_finite)
        comm.average(values)
        bucket.out.zero_()
        write_at(bucket.out, device_indices, values)

    def _draw(self, param: ParameterSlice, bucket: Bucket) -> Tensor:
        count = topk_count(self._ratio, param.numel)
        seed = bucket.derive_seed(param.name)
        indices = seeded_random.stratified_indices(seed, param.numel, count)
        return torch.from_numpy(indices + param.start)


def make_reducer(scheme: Scheme) -> Reducer:
    """Create the reducer of ``scheme``."""
    match scheme.method:
        case Method.NONE:
            return DenseReducer()
        case Method.CODEC:
            return CodecReducer(scheme.codec)
        case Method.TOP:
            return TopKReducer(scheme.ratio, exact=scheme.is_exact)
        case Method.RANDOM:
            return RandomKReducer(scheme.ratio)
        case Method.LOW_RANK:
            return PowerSgdReducer(scheme.rank)
