"""A profile counted from few moves is that of all moves, to the last bit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringleader.collectives.algorithm import OPERATIONS, ROOTED, algorithms, program
from ringleader.collectives.schedule_profile import profile, profile_programs

ALL = [(each, name) for each in OPERATIONS for name in algorithms(each)]


@pytest.mark.parametrize(("operation", "algorithm"), ALL)
def test_few_moves_tell_what_all_do(operation: str, algorithm: str) -> None:
    """Ranks must choose alike, so sums must not depend on how they were counted."""
    for size in (1, 2, 3, 4, 5, 7, 8, 12, 17):
        root = size // 2 if operation in ROOTED else 0
        for arity in (2, 3):
            programs = [
                program(operation, algorithm, rank, size, root=root, arity=arity)
                for rank in range(size)
            ]
            found = profile(operation, algorithm, size, root, arity)
            of_all = profile_programs(operation, programs)
            assert found == replace(of_all, is_exchange=algorithm == "exchange")
            assert list(found.links) == list(of_all.links), "they are added in turn"
