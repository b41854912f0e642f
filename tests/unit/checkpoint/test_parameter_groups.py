"""Parameter groups of ranks that hold different parameters."""

from __future__ import annotations

from ringleader.checkpoint.parameter_groups import merged


def test_stages_of_a_pipeline_become_one_group() -> None:
    first = [{"params": ["a", "tied"], "lr": 0.1, "betas": (0.9, 0.99)}]
    second = [{"params": ["tied", "b"], "lr": 0.1, "betas": (0.9, 0.99)}]
    assert merged([first, second]) == [
        {"params": ["a", "tied", "b"], "lr": 0.1, "betas": (0.9, 0.99)}
    ]


def test_groups_of_one_rank_stay_apart() -> None:
    """Whether their hyperparameters differ or not; a rank may lack one of them."""
    first = [{"params": ["a"], "lr": 1}, {"params": ["b"], "lr": 1}]
    second = [{"params": ["c"], "lr": 2}, {"params": ["d"], "lr": 1}]
    assert merged([first, second]) == [
        {"params": ["a", "d"], "lr": 1},
        {"params": ["b"], "lr": 1},
        {"params": ["c"], "lr": 2},
    ]
