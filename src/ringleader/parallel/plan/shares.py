"""The share of a batch that each machine gets in data-parallel training."""

from __future__ import annotations

from collections.abc import Sequence

from ringleader.errors import ConfigError


def batch_weights(
    seconds_per_sample: Sequence[float], most_samples: Sequence[float], batch: int
) -> list[float]:
    """Return each rank's part of ``batch`` samples; the parts add up to 1.

    The parts are in proportion to the speed, so that all ranks take equally long. A
    rank whose memory is full at ``most_samples`` gets these, and the others the rest.
    Raises ConfigError if the batch is larger than all memories together allow.

    >>> batch_weights([1.0, 0.5], [100.0, 100.0], 30)
    [0.3333333333333333, 0.6666666666666666]
    >>> batch_weights([1.0, 0.5], [100.0, 15.0], 30)
    [0.5, 0.5]
    """
    if sum(most_samples) < batch:
        rooms = " + ".join(f"{int(most)}" for most in most_samples)
        text = f"a batch of {batch} does not fit: the ranks have memory for {rooms}"
        raise ConfigError(f"{text} samples; use a smaller batch or more machines")
    given: dict[int, float] = {}
    while True:
        free = [rank for rank in range(len(most_samples)) if rank not in given]
        rest = batch - sum(given.values())
        speed = sum(1 / seconds_per_sample[rank] for rank in free)
        parts = {rank: rest / seconds_per_sample[rank] / speed for rank in free}
        full = [rank for rank in free if parts[rank] > most_samples[rank]]
        if not full:
            given |= parts
            return [given[rank] / batch for rank in range(len(most_samples))]
        given |= {rank: float(most_samples[rank]) for rank in full}
