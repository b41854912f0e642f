"""Sightings is the table of nodes of our cluster that were seen on the network. Pure.

A sighting is a hint where to dial, never a peer: only the handshake makes one. The
table is bounded, and only records whose tag a member made enter it, so a flood of
forged ones costs one HMAC each and changes only two counters. Strangers can repeat a
member's own record, which changes nothing, and say goodbye in its name, which is
checked by querying again.

Times are ``time.monotonic()``. Not safe for two threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ringleader.discovery.record import (
    NodeRecord,
    RecordRefusal,
    addresses_on_networks,
    decode,
    is_genuine,
)
from ringleader.errors import ConfigError
from ringleader.topology.interfaces import Interface, best_first

MAX_SIGHTINGS = 64
"""More nodes than a home has; few enough to dial them all within a minute."""

MAX_FOREIGN = 64
"""Labels of other clusters that are counted; more than that is a flood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SightingConfig:
    """How long a sighting is valid and how often it is dialed."""

    lifetime_s: float = 120.0
    """Silence after which a sighting is forgotten. Nodes are queried every 30 s, so
    four answers in a row were lost, or the node is gone."""

    goodbye_s: float = 3.0
    """How long a node that said goodbye may still take it back. It is queried within
    1.1 s, and answers that were given just before are repeated after at most 1.4 s."""

    dial_s: float = 15.0
    """How long a dial may stay unreported before the label is offered again."""

    first_wait_s: float = 0.5
    """Wait after the first failed dial; it doubles with every further one."""

    longest_wait_s: float = 10.0
    """A machine that comes back is dialed within this time. 64 dead labels cause six
    dials per second, which is negligible."""

    def __post_init__(self) -> None:
        if not 0 < self.first_wait_s <= self.longest_wait_s:
            raise ConfigError(f"need 0 < first_wait_s <= longest_wait_s, got {self}")
        if not 0 < self.goodbye_s < self.lifetime_s or self.dial_s <= 0:
            raise ConfigError(f"need 0 < goodbye_s < lifetime_s, 0 < dial_s: {self}")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A node of our cluster, and where it can be dialed; all of it verified."""

    label: str
    port: int
    addresses: tuple[str, ...]
    """Addresses on our networks, the best first."""


@dataclass(slots=True)
class _Candidate:
    """A sighting with the history of its dials."""

    record: NodeRecord
    sighting: Sighting
    seen_s: float
    due_s: float
    """When it may be dialed next."""
    failures: int = 0
    is_reached: bool = False
    gone_s: float | None = None
    """When it is removed, if it said goodbye and does not answer."""


class Sightings:
    """The bounded table of nodes that were seen, and which one to dial next."""

    def __init__(self, key: bytes, config: SightingConfig | None = None) -> None:
        self._key = key
        self._config = config or SightingConfig()
        self._chosen: Sequence[Interface] = ()
        self._own: Collection[str] = ()
        self._table: dict[str, _Candidate] = {}
        self._foreign: dict[str, None] = {}
        self.refused: Counter[RecordRefusal] = Counter()
        """Number of refused records, by reason."""

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:  # without the key
        return f"<Sightings of {len(self)} nodes, refused {dict(self.refused)}>"

    @property
    def num_foreign(self) -> int:
        """Different labels whose tag we cannot verify; at most MAX_FOREIGN."""
        return len(self._foreign)

    def all(self) -> list[Sighting]:
        """Return every node that is believed to be present, oldest first."""
        return [c.sighting for c in self._table.values() if c.gone_s is None]

    def settle(self, chosen: Sequence[Interface], own: Collection[str]) -> None:
        """Set our interfaces and our own labels.

        Sightings on a network that we have left are forgotten.
        """
        self._chosen, self._own = tuple(chosen), frozenset(own)
        for label, candidate in list(self._table.items()):
            sighting = self._locate(candidate.record)
            if isinstance(sighting, RecordRefusal):
                del self._table[label]
            else:
                candidate.sighting = sighting

    def hear(self, label: str, port: int, txt: bytes, now_s: float) -> Sighting | None:
        """Check a record; return the sighting if it is new or has changed."""
        record = self._authenticate(label, port, txt)
        sighting = self._locate(record) if isinstance(record, NodeRecord) else record
        if isinstance(record, NodeRecord) and isinstance(sighting, Sighting):
            return self._keep(record, sighting, now_s)
        assert isinstance(sighting, RecordRefusal)
        self.refused[sighting] += 1
        return None

    def _authenticate(
        self, label: str, port: int, txt: bytes
    ) -> NodeRecord | RecordRefusal:
        if label in self._own:
            return RecordRefusal.OURSELVES
        record = decode(label, port, txt)
        if isinstance(record, NodeRecord) and not is_genuine(record, self._key):
            self._note_foreign(label)
            return RecordRefusal.FOREIGN
        return record

    def _note_foreign(self, label: str) -> None:
        if label not in self._table and len(self._foreign) < MAX_FOREIGN:
            self._foreign[label] = None

    def _locate(self, record: NodeRecord) -> Sighting | RecordRefusal:
        addresses = addresses_on_networks(record, self._chosen)
        if not addresses:
            return RecordRefusal.ELSEWHERE
        addresses = best_first(addresses, self._chosen)
        return Sighting(record.label, record.port, addresses)

    def _keep(
        self, record: NodeRecord, sighting: Sighting, now_s: float
    ) -> Sighting | None:
        known = self._table.get(record.label)
        if known is not None:
            is_changed = known.sighting != sighting
            known.record, known.sighting = record, sighting
            known.seen_s, known.gone_s = now_s, None
            return sighting if is_changed else None
        self.expire(now_s)
        if len(self._table) >= MAX_SIGHTINGS and not self._make_room():
            return None
        self._table[record.label] = _Candidate(record, sighting, now_s, now_s)
        return sighting

    def _make_room(self) -> bool:
        """Drop the node that failed most often and longest ago; never a reached one.

        A new one must get in: otherwise 64 old records of ours, repeated by a stranger,
        would keep out every node that starts later.
        """
        idle = [c for c in self._table.values() if not c.is_reached and c.failures]
        if idle:
            worst = max(idle, key=lambda c: (c.failures, -c.seen_s))
            del self._table[worst.record.label]
        return bool(idle)

    def say_goodbye(self, label: str, now_s: float) -> bool:
        """Record a goodbye for ``label``; return True if the node should be queried."""
        candidate = self._table.get(label)
        if candidate is None or candidate.gone_s is not None:
            return False
        candidate.gone_s = now_s + self._config.goodbye_s
        return True

    def expire(self, now_s: float) -> list[Sighting]:
        """Forget nodes that fell silent or left, and return them."""
        oldest_s = now_s - self._config.lifetime_s
        ended = [
            candidate.sighting
            for candidate in self._table.values()
            if candidate.seen_s <= oldest_s
            or (candidate.gone_s is not None and candidate.gone_s <= now_s)
        ]
        for sighting in ended:
            del self._table[sighting.label]
        return ended

    def fresh_labels(self, now_s: float) -> list[str]:
        """Return nodes that need not answer a query: they did within half a
        lifetime."""
        since_s = now_s - self._config.lifetime_s / 2
        return [
            label
            for label, candidate in self._table.items()
            if candidate.seen_s > since_s and candidate.gone_s is None
        ]

    def next_to_dial(self, now_s: float) -> Sighting | None:
        """Return whom to dial now; report the result with ``reached`` or ``failed``."""
        self.expire(now_s)
        due = [
            candidate
            for candidate in self._table.values()
            if candidate.due_s <= now_s
            and not candidate.is_reached
            and candidate.gone_s is None
        ]
        if not due:
            return None
        chosen = min(due, key=lambda candidate: candidate.due_s)
        chosen.due_s = now_s + self._config.dial_s
        return chosen.sighting

    def reached(self, label: str) -> None:
        """Record that there is a link: do not dial it, and keep it in the table."""
        if label in self._table:
            self._table[label].is_reached = True
            self._table[label].failures = 0

    def failed(self, label: str, now_s: float) -> None:
        """Record a failed dial or an ended link: wait before the next dial."""
        candidate = self._table.get(label)
        if candidate is None:
            return
        wait_s = self._config.first_wait_s * 2.0 ** min(candidate.failures, 16)
        candidate.due_s = now_s + min(wait_s, self._config.longest_wait_s)
        candidate.failures += 1
        candidate.is_reached = False
