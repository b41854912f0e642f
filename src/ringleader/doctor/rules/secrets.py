"""Rule: which nodes have another cluster secret? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ringleader.doctor.facts import Candidate, DialOutcome, Facts, Source
from ringleader.doctor.finding import Code, Finding


def wrong_secrets(facts: Facts) -> Iterator[Finding]:
    """Find nodes that have another secret and should have ours.

    A node that the user named should be one of ours. A node that only announces itself
    may belong to another cluster, so it is reported only if no node of ours is known:
    then this machine is probably the one with the wrong secret.
    """
    refusing = [c for c in facts.candidates if has_other_secret(c)]
    expected = [c for c in refusing if c.sources != {Source.FOREIGN}]
    strangers = [c for c in facts.candidates if c.sources == {Source.FOREIGN}]
    away = [c for c in facts.candidates if not c.is_here]
    is_alone = all(c.sources == {Source.FOREIGN} for c in away)
    wrong = expected or (strangers if is_alone else [])
    if wrong and facts.cluster:
        where = "; ".join(c.where for c in wrong)
        if facts.has_own_certificates:
            yield _wrong_certificate(facts, where)
            return
        text = (
            f"{facts.name} is in cluster {facts.cluster}, and has another secret than "
            f"the node at {where}: one of the two is in another cluster, or a phrase "
            "was mistyped."
        )
        mend = (
            "On the machine that is wrong run 'ringleader leave', then 'ringleader "
            "join' with the phrase of the other ('ringleader invite' shows the way)."
        )
        yield Finding(Code.WRONG_SECRET, text, mend)


def _wrong_certificate(facts: Facts, where: str) -> Finding:
    text = (
        f"{facts.name} has a certificate of {facts.cluster}, and does not get on with "
        f"the node at {where}: one does not accept the certificate of the other."
    )
    mend = (
        "Give both certificates of one authority, for the addresses by which they are "
        "dialled, and look at 'ringleader status' on both for the reason."
    )
    return Finding(Code.WRONG_SECRET, text, mend)


def has_other_secret(candidate: Candidate) -> bool:
    """Return whether a node has another secret.

    A node that announces itself with ours has ours; if it closes the connection, there
    is another reason.
    """
    if candidate.outcome is DialOutcome.HUNG_UP:
        return Source.SEEN not in candidate.sources
    return candidate.outcome is DialOutcome.FOREIGN
