"""``changes``: what differs between two states of the page. Pure."""

from __future__ import annotations

from collections.abc import Mapping

PageState = Mapping[str, Mapping[str, object]]
"""Section -> key -> row, as JSON holds it."""
Changes = dict[str, dict[str, object]]
"""As ``PageState``, with only rows that changed; None is a row that is gone."""


def changes(before: PageState, after: PageState) -> Changes:
    """Return the rows of ``after`` that are new or differ, and those that are gone."""
    found: Changes = {}
    for section in before.keys() | after.keys():
        old, new = before.get(section, {}), after.get(section, {})
        rows = {
            key: row
            for key, row in new.items()
            if key not in old or not _is_same(old[key], row)
        }
        rows.update(dict.fromkeys(old.keys() - new.keys(), None))
        if rows:
            found[section] = rows
    return found


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other
