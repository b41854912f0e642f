"""The ways to train that ``low_communication.py`` compares."""

from __future__ import annotations

from dataclasses import dataclass, replace

CHARACTERS = ("characters", "few-characters", "many-characters")
DIGITS = ("digits",)
BOTH = (*CHARACTERS, *DIGITS)


@dataclass(frozen=True)
class Case:
    """One way to train."""

    name: str
    family: str
    """Of the cases of one family only the best runs with more seeds."""
    problems: tuple[str, ...] = BOTH
    workers: int = 4
    steps: int = 50
    """Local steps between two exchanges; 0: synchronous training."""
    lr: float = 0.004
    """Largest learning rate of AdamW: warm-up over 100 steps, then a cosine to 0."""
    beta2: float = 0.99
    """How much AdamW keeps of its mean of squared gradients in each step."""
    outer_rate: float = 0.7
    outer_momentum: float = 0.9
    is_adam: bool = False
    """The outer step is Adam's, with ``outer_rate``."""
    codec: str = ""
    rule: str = "all"
    speeds: tuple[float, ...] = (1, 1, 1, 1)
    has_token_weights: bool = True
    leaves: bool = False
    """Two of four workers are away in the middle third."""
    late: int = 0
    """Rounds by which three of four workers are late."""
    has_age_weights: bool = True


def _rates(case: Case, *rates: float) -> list[Case]:
    return [replace(case, name=f"{case.name}, lr {r:g}", lr=r) for r in rates]


def _slow(cases: list[Case]) -> list[Case]:
    """Return cases with a longer memory of squared gradients: small batches differ."""
    return [
        replace(case, name=f"{case.name}, beta2 0.999", beta2=0.999) for case in cases
    ]


def _outer(case: Case, rate: float, momentum: float) -> Case:
    name = f"{case.name}, outer {rate:g} and {momentum:g}"
    return replace(case, name=name, outer_rate=rate, outer_momentum=momentum)


def _diloco(workers: int, codec: str = "") -> list[Case]:
    name = f"{workers} workers, H 50, {codec or 'float32'}"
    case = Case(name, name, workers=workers, codec=codec)
    return [
        *_rates(_outer(case, 1.0, 0.5), 0.008),
        *_rates(_outer(case, 1.0, 0.7), 0.008),
        *_slow(_rates(_outer(case, 0.7, 0.9), 0.004)),
        *_slow(_rates(_outer(case, 1.0, 0.3), 0.016)),
        *_slow(_rates(_outer(case, 1.0, 0.6), 0.004, 0.008, 0.016)),
        *_slow(_rates(_outer(case, 1.0, 0.8), 0.004)),
    ]


def _sparse(workers: int, rule: str = "all") -> Case:
    name = f"{workers} workers, H 30, SparseLoCo, mean of {rule}"
    case = Case(name, name, workers=workers, steps=30, codec="sparseloco", rule=rule)
    return _outer(case, 1.0, 0.0)


_DDP = Case("DDP", "DDP", steps=0)
_USUAL = replace(Case("", "", DIGITS), lr=0.002)
_LATE = (
    ("Nesterov", {"has_age_weights": False}),
    ("Nesterov, age weights", {}),
    ("Adam 0.003, age weights", {"is_adam": True, "outer_rate": 0.003}),
)


def _named(name: str, **changes: object) -> Case:
    return replace(_USUAL, name=name, family=name, **changes)  # type: ignore[arg-type]


CASES = (
    *_rates(_DDP, 0.004, 0.008, 0.016, 0.032),
    *_slow(_rates(_DDP, 0.004, 0.008, 0.016, 0.032)),
    *_diloco(2, "int8"),
    *_diloco(4, "int8"),
    *_rates(_outer(Case("2 workers", "2 workers, float32", workers=2), 1, 0.7), 0.008),
    *_rates(_outer(Case("4 workers", "4 workers, float32"), 1, 0.7), 0.008),
    *_rates(_sparse(2), 0.008),
    *_rates(_sparse(4), 0.008),
    *_rates(replace(_sparse(4, "senders"), problems=DIGITS), 0.008),
    _named("H 50, int8, 4 -> 2 -> 4 workers", codec="int8", leaves=True),
    _named("H 50, speeds 4:2:1:1", speeds=(4, 2, 1, 1)),
    _named("H 50, no token weights", speeds=(4, 2, 1, 1), has_token_weights=False),
    *(
        _named(f"H 50, {t} late, {label}", late=t, **more)
        for t in (1, 4, 8)
        for label, more in _LATE
    ),
)
MAX_WORKERS = max(case.workers for case in CASES)
