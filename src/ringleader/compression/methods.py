"""What each scheme does with a bucket: from everybody's gradients to their mean.

Each method leaves in ``out`` the same bits on all ranks, and in ``held`` what of this
rank's total was not applied.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ringleader.compression import chance
from ringleader.compression.bucket import Bucket, is_finite, put, take
from ringleader.compression.cost import Way, choose
from ringleader.compression.entries import Entries
from ringleader.compression.largest import largest, number_of
from ringleader.compression.memory import Slot
from ringleader.compression.peers import Peers
from ringleader.compression.powersgd import LowRank
from ringleader.compression.scheme import Method, Scheme
from ringleader.compression.sparse import SparseSum
from ringleader.engine.arrays import as_array


class Reducer(Protocol):
    """One method, for all buckets."""

    def reduce(self, bucket: Bucket, peers: Peers) -> None:
        """Turn ``bucket`` into the mean over all ranks."""
        ...


class Plain:
    """Everything, as it is."""

    def reduce(self, bucket: Bucket, peers: Peers) -> None:
        """One all_reduce."""
        _send_all(bucket, peers)


def _send_all(bucket: Bucket, peers: Peers) -> None:
    bucket.add_up_in_place()
    peers.mean(bucket.out)
    bucket.sent_all()


class Coded:
    """Everything, through a codec inside the collective. NaN: see the codec."""

    def __init__(self, codec: str) -> None:
        self._codec = codec

    def reduce(self, bucket: Bucket, peers: Peers) -> None:
        """One all_reduce."""
        codec = self._codec
        if codec == "int8-stochastic":  # the same again if the step is repeated
            codec = f"{codec}:{bucket.start(bucket.slots[0].name)}"
        owed = bucket.owed_at_once() if peers.adds else None
        total = bucket.out if owed is not None else bucket.add_up_in_place()
        peers.coded_mean(total, codec, owed, bucket.held)


class Top:
    """The largest values of each parameter. Infinite and NaN count as the largest."""

    def __init__(self, ratio: float, *, exact: bool) -> None:
        self._ratio = ratio
        self._exact = exact
        self._sum = SparseSum()

    def reduce(self, bucket: Bucket, peers: Peers) -> None:
        """Counts, then entries; or an all_reduce, where that is fewer bytes."""
        count = sum(number_of(self._ratio, slot.count) for slot in bucket.slots)
        way, _ = choose(len(bucket.out), count, peers.size)
        if way is Way.DENSE:
            _send_all(bucket, peers)
            return
        total = bucket.add_up()
        places = torch.cat([self._choose(total, slot, bucket) for slot in bucket.slots])
        values = take(total, places)
        bucket.sent(places, is_finite=is_finite(values))
        array = as_array(values)
        array /= np.float32(peers.size)
        self._sum.add_up(Entries(as_array(places.cpu()), array), bucket.out, peers)

    def _choose(self, total: Tensor, slot: Slot, bucket: Bucket) -> Tensor:
        return slot.start + largest(
            total[slot.run],
            number_of(self._ratio, slot.count),
            exact=self._exact,
            start=bucket.start(slot.name),
        )


class Random:
    """A random share of each parameter, the same places on all ranks.

    Sent as they are, never divided by the share: what is left out now comes later, by
    error feedback, and would come twice. A parameter with a value that is not finite
    anywhere sends NaN, so that it is noticed.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio

    def reduce(self, bucket: Bucket, peers: Peers) -> None:
        """One all_reduce of the values; places are known."""
        total = bucket.add_up()
        drawn = [self._draw(slot, bucket) for slot in bucket.slots]
        places = torch.cat(drawn)
        device_places = places.to(total.device)
        values = take(total, device_places)
        is_clean = is_finite(total)
        if not is_clean:
            edges = [0, *accumulate(map(len, drawn))]
            for slot, a, b in zip(bucket.slots, edges[:-1], edges[1:], strict=True):
                if not is_finite(total[slot.run]):
                    values[a:b] = torch.nan
        bucket.sent(device_places, is_finite=is_clean)
        peers.mean(values)
        bucket.out.zero_()
        put(bucket.out, device_places, values)

    def _draw(self, slot: Slot, bucket: Bucket) -> Tensor:
        count = number_of(self._ratio, slot.count)
        places = chance.spread(bucket.start(slot.name), slot.count, count)
        return torch.from_numpy(places + slot.start)


def reducer(scheme: Scheme) -> Reducer:
    """The method of ``scheme``."""
    match scheme.method:
        case Method.NONE:
            return Plain()
        case Method.CODEC:
            return Coded(scheme.codec)
        case Method.TOP:
            return Top(scheme.ratio, exact=scheme.is_exact)
        case Method.RANDOM:
            return Random(scheme.ratio)
        case Method.LOW_RANK:
            return LowRank(scheme.rank)
