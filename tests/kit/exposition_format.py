"""A parser of Prometheus' text format, written from its specification alone.

https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4. It shares
no code with the writer, and refuses what Prometheus refuses.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(,|$)')
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_SUFFIXES = ("_bucket", "_sum", "_count")

LabelSet = frozenset[tuple[str, str]]


@dataclass
class Family:
    """One metric of a page."""

    kind: str
    help: str = ""
    samples: dict[tuple[str, LabelSet], float] = field(default_factory=dict)
    """(name with its suffix, labels) -> value."""


def parse(text: str) -> dict[str, Family]:
    """Parse a page; ValueError for anything that the format forbids."""
    if text and not text.endswith("\n"):
        raise ValueError("the last line must end with a line feed")
    helps: dict[str, str] = {}
    families: dict[str, Family] = {}
    current = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, rest = line[7:].partition(" ")
            helps[name] = rest
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            if name in families or kind not in ("counter", "gauge", "histogram"):
                raise ValueError(f"bad TYPE: {line}")
            families[name] = Family(kind, helps.get(name, ""))
            current = name
        elif line and not line.startswith("#"):
            _sample(line, current, families)
    for name in [name for name in families if families[name].kind == "histogram"]:
        _check_histogram(name, families[name])
    return families


def _sample(line: str, current: str, families: dict[str, Family]) -> None:
    match = _SAMPLE.fullmatch(line)
    if match is None:
        raise ValueError(f"bad sample: {line}")
    name, inner, number = match.groups()
    family = families.get(current)
    is_histogram = family is not None and family.kind == "histogram"
    names = {current + s for s in _SUFFIXES} if is_histogram else {current}
    if family is None or name not in names:
        raise ValueError(f"sample outside of its family: {line}")
    key = (name, _labels(inner or ""))
    if key in family.samples:
        raise ValueError(f"twice: {line}")
    family.samples[key] = math.inf if number == "+Inf" else float(number)


def _labels(inner: str) -> LabelSet:
    found: dict[str, str] = {}
    at = 0
    while at < len(inner):
        match = _LABEL.match(inner, at)
        if match is None or match[1] in found:
            raise ValueError(f"bad labels: {inner}")
        found[match[1]] = re.sub(
            r'\\([\\"n])', lambda m: "\n" if m[1] == "n" else m[1], match[2]
        )
        at = match.end()
    return frozenset(found.items())


def _check_histogram(name: str, family: Family) -> None:
    """Buckets must grow with their bound, end at +Inf and match the count."""
    rows: dict[LabelSet, list[tuple[float, float]]] = {}
    for (sample, labels), value in family.samples.items():
        if sample == f"{name}_bucket":
            pairs = dict(labels)
            bound = pairs.pop("le")
            at = math.inf if bound == "+Inf" else float(bound)
            rows.setdefault(frozenset(pairs.items()), []).append((at, value))
    for labels, buckets in rows.items():
        bounds, counts = zip(*buckets, strict=True)
        if list(bounds) != sorted(set(bounds)) or bounds[-1] != math.inf:
            raise ValueError(f"{name}: bounds {bounds}")
        if list(counts) != sorted(counts):
            raise ValueError(f"{name}: buckets do not add up")
        if family.samples[f"{name}_count", labels] != counts[-1]:
            raise ValueError(f"{name}: count differs from the last bucket")
        if (f"{name}_sum", labels) not in family.samples:
            raise ValueError(f"{name}: no sum")
