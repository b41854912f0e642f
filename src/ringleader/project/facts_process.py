"""``python -m ringleader.project.facts_process``: what this Python environment has.

Reads ``EnvironmentNeeds`` from standard input and writes ``EnvironmentFacts``, as JSON.
"""

from __future__ import annotations

import sys

import msgspec

from ringleader.decoding import from_json
from ringleader.project.environment import MAX_BYTES, EnvironmentNeeds, local_facts


def main() -> None:
    """Answer one question."""
    data = sys.stdin.buffer.read(MAX_BYTES)
    needs = from_json(data, EnvironmentNeeds)
    sys.stdout.buffer.write(msgspec.json.encode(local_facts(needs)))


if __name__ == "__main__":
    main()
