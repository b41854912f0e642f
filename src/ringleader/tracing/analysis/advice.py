"""``advise``: the one sentence that says what limits a run, and what to try."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.tracing.analysis.causes import Late, SlowLink, Unexplained
from ringleader.tracing.analysis.parts import Parts
from ringleader.tracing.analysis.summary import Summary

COMPUTE_SHARE = 0.9
"""A rank that computes for this share of the step has nothing to gain elsewhere."""
ENCODE_SHARE = 0.2
ALIKE = 0.8
"""A rank that waits at least this much of the longest time waits as long."""
BYTES_SHARE = 0.3
"""If the bytes alone need less than this share of the time for communication, the
number of operations is the cost, and not their size."""
SMALL_BYTES = 256 << 10
"""Mean size of operations that may cost their start rather than their bytes."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank with the parts of its mean step."""

    rank: int
    count: int
    parts: Parts

    @property
    def step_s(self) -> float:
        return self.parts.step_ns / self.count / 1e9

    @property
    def compute_s(self) -> float:
        return self.parts.compute_ns / self.count / 1e9


def advise(summary: Summary) -> str:
    """Return what limits the run and what to try, from the parts of its steps."""
    means = [(rank, *summary.mean_steps(rank)) for rank in sorted(summary.steps)]
    ranks = [_Rank(*each) for each in means if each[1] and each[2].step_ns]
    if not ranks:
        return (
            "no step was seen: a step ends with optimizer.step(), or where the "
            "script calls step() on its trace"
        )
    if len(ranks) > 1 and not any(each.parts.num_operations for each in ranks):
        return (
            "no operation of the ringleader backend was seen, so waiting for others "
            "counts as compute: try --backend ringleader"
        )
    worst = max(ranks, key=lambda each: each.parts.share(each.parts.exposed_ns))
    encoder = max(ranks, key=lambda each: each.parts.share(each.parts.encode_ns))
    parts = worst.parts
    if parts.share(parts.compute_ns) >= COMPUTE_SHARE:
        return _compute_bound(worst, ranks, summary)
    if _is_encode_bound(encoder.parts):
        return _encode_bound(encoder, summary)
    if _unexplained_ns(parts) > parts.exposed_ns / 2:
        share = _percent(parts, _unexplained_ns(parts))
        text = f"{summary.name(worst.rank)} waits {share} of the step for others"
        return f"{text}; why is not in this trace"
    late = _latest(parts)
    if late is not None and parts.waits_ns[late] >= _network_ns(parts):
        return _slow_machine(worst, late, ranks, summary)
    if _is_start_bound(parts, summary):
        return _small_batches(worst, summary)
    return _network_bound(_beside(worst, ranks, summary), summary)


def _network_ns(parts: Parts) -> int:
    """Return the time that bytes took, on the wire and in the engine."""
    links = (ns for cause, ns in parts.waits_ns.items() if isinstance(cause, SlowLink))
    return parts.wire_ns + sum(links)


def _unexplained_ns(parts: Parts) -> int:
    """Return the waiting for ranks that left no trace."""
    return sum(
        ns for each, ns in parts.waits_ns.items() if isinstance(each, Unexplained)
    )


def _latest(parts: Parts) -> Late | None:
    """Return the late rank that was waited for longest."""
    found = [each for each in parts.waits_ns if isinstance(each, Late)]
    return max(found, key=lambda each: parts.waits_ns[each], default=None)


def _slowest(parts: Parts) -> SlowLink | None:
    """Return the link that was waited for longest."""
    found = [each for each in parts.waits_ns if isinstance(each, SlowLink)]
    return max(found, key=lambda each: parts.waits_ns[each], default=None)


def _is_encode_bound(parts: Parts) -> bool:
    rest_ns = parts.exposed_ns - parts.encode_ns
    return parts.share(parts.encode_ns) >= ENCODE_SHARE and parts.encode_ns > rest_ns


def _is_start_bound(parts: Parts, summary: Summary) -> bool:
    """Return whether operations cost their start and not their bytes."""
    num = parts.num_operations
    if not num or parts.num_bytes / num >= SMALL_BYTES:
        return False
    slowest = min(summary.links.values(), default=0.0)
    if not slowest:
        return True
    spent_ns = parts.exposed_ns + parts.hidden_ns
    return parts.num_bytes / slowest * 1e9 < BYTES_SHARE * spent_ns


def _percent(parts: Parts, part_ns: int) -> str:
    return f"{100 * parts.share(part_ns):.0f} %"


def _compute_bound(worst: _Rank, ranks: list[_Rank], summary: Summary) -> str:
    parts = worst.parts
    slowest = max(ranks, key=lambda each: each.parts.compute_ns / each.count)
    text = f"every rank computes for at least {_percent(parts, parts.compute_ns)} of "
    text += "the step: the network is not the limit"
    if len(ranks) > 1:
        text += f"; {summary.name(slowest.rank)} computes longest, "
        text += f"{_seconds(slowest.compute_s)} per step"
    return f"{text}: only a smaller model or faster machines make it faster"


def _encode_bound(encoder: _Rank, summary: Summary) -> str:
    parts = encoder.parts
    codecs = sorted(parts.codecs - {"none"})
    how = f" ({', '.join(codecs)})" if codecs else ""
    text = f"{summary.name(encoder.rank)} spends {_percent(parts, parts.encode_ns)} of "
    text += f"the step on compression{how}: try a cheaper one, such as "
    return text + ("none at all" if codecs == ["bf16"] else "--compress bf16")


def _slow_machine(
    worst: _Rank, late: Late, ranks: list[_Rank], summary: Summary
) -> str:
    waits_ns = worst.parts.waits_ns[late]
    text = f"{summary.name(worst.rank)} waits {_percent(worst.parts, waits_ns)} of the "
    text += f"step for {summary.name(late.rank)}"
    slow = next((each for each in ranks if each.rank == late.rank), None)
    if slow is None or slow.compute_s <= worst.compute_s:
        return (
            f"{text}, which begins its operations later: look at its part of the trace"
        )
    text += f", which computes {_seconds(slow.compute_s)} per step instead of "
    text += f"{_seconds(worst.compute_s)}: give it a smaller batch"
    return f"{text} (ringleader.elastic does that by itself), or leave it out"


def _small_batches(worst: _Rank, summary: Summary) -> str:
    parts = worst.parts
    per_step = max(1, round(parts.num_operations / worst.count))
    kib = parts.num_bytes / parts.num_operations / 1024
    text = (
        f"{summary.name(worst.rank)} waits {_percent(parts, parts.exposed_ns)} of the "
    )
    text += f"step of {_seconds(worst.step_s)} for {per_step} operations of {kib:.0f} "
    text += "KiB on average, which cost their start and not their bytes: try larger "
    return f"{text}batches, or several backward passes per step (no_sync)"


def _beside(worst: _Rank, ranks: list[_Rank], summary: Summary) -> _Rank:
    """Return a rank that waits for the slow machine, if ``worst`` is on it itself."""
    link = _slowest(worst.parts)
    if link is None or summary.slow_end(link) != worst.rank:
        return worst
    others = [each for each in ranks if each.rank != worst.rank]
    found = max(others, key=lambda each: each.parts.share(each.parts.exposed_ns))
    shares = (each.parts.share(each.parts.exposed_ns) for each in (found, worst))
    return found if next(shares) >= ALIKE * next(shares) else worst


def _network_bound(worst: _Rank, summary: Summary) -> str:
    parts, slowest = worst.parts, _slowest(worst.parts)
    waits_ns = _network_ns(parts)
    text = (
        f"{summary.name(worst.rank)} waits {_percent(parts, waits_ns)} of the step for "
    )
    if slowest is None:
        text += "the network"
    elif summary.is_one_machine(slowest):
        other = _other_end(slowest, worst.rank)
        text += f"exchanges with rank {other}, on the same machine"
        return f"{text}: try fewer processes there, or larger batches"
    else:
        text += _link(slowest, worst.rank, summary)
    return f"{text}: {_less_bytes(parts.codecs)}"


def _link(link: SlowLink, waiting: int, summary: Summary) -> str:
    """Name a link by its slow end, with its measured speed."""
    end = summary.slow_end(link)
    if end is None and waiting in (link.source, link.target):
        text = f"its link with {summary.machine(_other_end(link, waiting))}"
    elif end is None:
        ends = summary.machine(link.source), summary.machine(link.target)
        text = f"the link from {ends[0]} to {ends[1]}"
    else:
        kind = summary.link_kinds.get(end, "") or "network link"
        text = "its own" if end == waiting else f"{summary.machine(end)}'s"
        text = f"{text} {kind}"
    speed = summary.links.get((link.source, link.target))
    return text if speed is None else f"{text} ({_rate(speed)})"


def _other_end(link: SlowLink, rank: int) -> int:
    return link.target if rank == link.source else link.source


def _less_bytes(codecs: set[str]) -> str:
    used = codecs - {"none"}
    if not used:
        return "try --compress int8"
    if used <= {"fp16", "bf16"}:
        return "try --compress int8 instead of " + " and ".join(sorted(used))
    return (
        "gradients are compressed already; try --compress topk:0.01, larger batches "
        "or a cable"
    )


def _seconds(value_s: float) -> str:
    return f"{value_s:.1f} s" if value_s >= 1 else f"{1000 * value_s:.1f} ms"


def _rate(bytes_per_s: float) -> str:
    mbit = bytes_per_s * 8 / 1e6
    return f"{mbit / 1000:.1f} Gbit/s" if mbit >= 1000 else f"{mbit:.0f} Mbit/s"
