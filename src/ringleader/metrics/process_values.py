"""ProcessValues: a snapshot and the labels that tell its process from others.

It travels as a line of JSON with the labels, followed by the JSON of the snapshot: in
files from workers to their agent, and in messages from agents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ringleader.errors import ConfigError
from ringleader.metrics.snapshot import MAX_BYTES, MAX_LABEL, Snapshot

LABELS = ("process", "node", "rank", "pid")
"""Labels that a process may have, in the order in which they are shown."""
MAX_LINE = 2048
MAX_ENCODED = MAX_LINE + MAX_BYTES


@dataclass(frozen=True, slots=True)
class ProcessValues:
    """The values of one process."""

    labels: Mapping[str, str]
    snapshot: Snapshot

    def encode(self) -> bytes:
        """The bytes that ``decode`` reads."""
        return json.dumps(dict(self.labels)).encode() + b"\n" + self.snapshot.to_json()

    @classmethod
    def decode(cls, data: bytes) -> ProcessValues:
        """Read what ``encode`` wrote; ConfigError if it is anything else."""
        line, _, rest = data.partition(b"\n")
        try:
            found = json.loads(line[:MAX_LINE])
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"metrics: the first line has no labels ({exc})") from exc
        if not isinstance(found, dict) or not found.keys() <= set(LABELS):
            raise ConfigError("metrics: the first line has other labels")
        for value in found.values():
            if not isinstance(value, str) or len(value) > MAX_LABEL:
                raise ConfigError("metrics: a label is not a short text")
        labels = {name: found[name] for name in LABELS if name in found}
        return cls(labels, Snapshot.from_json(rest))
