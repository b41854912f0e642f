"""Entering and leaving a cluster, and who is remembered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.identity import entry, known, secret
from ringleader.identity.home import Home
from ringleader.identity.known import Member
from ringleader.identity.node_key import NodeKey, claim, first_key, key_files
from ringleader.identity.redacted import Secret
from ringleader.identity.secret import ClusterSecret

ONE = ClusterSecret(root=Secret(b"1" * 32), name="one")
TWO = ClusterSecret(root=Secret(b"2" * 32), name="two")
FRIEND = Member(NodeKey.ephemeral().node_id, "kitchen-pc")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_cluster_is_entered_once(home: Home) -> None:
    entry.check_free(home)
    assert entry.enter(home, ONE, met=FRIEND)
    assert secret.load(home) == ONE
    assert known.load(home) == {FRIEND.node: "kitchen-pc"}
    assert not entry.enter(home, ONE), "already in it"


def test_the_same_phrase_again_does_not_lose_the_name(home: Home) -> None:
    entry.enter(home, ONE)
    assert not entry.enter(home, ClusterSecret(root=ONE.root))
    assert secret.load(home) == ONE


def test_another_cluster_needs_a_word(home: Home) -> None:
    entry.enter(home, ONE, met=FRIEND)
    for refused in (lambda: entry.enter(home, TWO), lambda: entry.check_free(home)):
        with pytest.raises(ConfigError, match=r'in cluster "one" .* already; run'):
            refused()
    assert secret.load(home) == ONE
    assert entry.enter(home, TWO, replace=True)
    assert secret.load(home) == TWO
    assert known.load(home) == {}, "they were nodes of the other cluster"


def test_leaving_deletes_secret_keys_and_known_nodes(home: Home) -> None:
    entry.enter(home, ONE, met=FRIEND)
    old = first_key(home).node_id
    with claim(home), claim(home):
        pass
    (home.path / "notes").write_text("mine")
    assert entry.leave(home) == ONE
    assert home.names() == ["lock", "notes"], "what is not ours stays"
    assert entry.leave(home) is None
    assert first_key(home).node_id != old


def test_nobody_leaves_while_a_node_runs(home: Home) -> None:
    entry.enter(home, ONE)
    with claim(home), claim(home) as second:
        second.close()
        with pytest.raises(ConfigError, match="node_key is in use: a node runs"):
            entry.leave(home)
        assert secret.load(home) == ONE
        assert key_files(home) == ["node_key", "node_key-2"]
    assert entry.leave(home) == ONE


def test_leaving_mends_a_damaged_file(home: Home) -> None:
    with home.changing() as change:
        change.write(secret.FILE, Secret(b"garbage"))
        change.write("node_key", Secret(b"garbage"))
    with pytest.raises(ConfigError, match="leave"):
        entry.enter(home, ONE)
    assert entry.leave(home) is None
    assert entry.enter(home, ONE)


# -- known nodes -------------------------------------------------------------------


def remember(home: Home, *members: Member) -> None:
    with home.changing() as change:
        for member in members:
            known.remember(home, change, member)


def test_a_node_that_is_met_again_gets_its_new_name(home: Home) -> None:
    other = Member(NodeKey.ephemeral().node_id, "desk")
    remember(home, FRIEND, other, Member(FRIEND.node, "living\nroom"))
    assert known.load(home) == {other.node: "desk", FRIEND.node: "living room"}


def test_the_oldest_acquaintance_makes_room(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "MAX_NODES", 2)
    members = [Member(NodeKey.ephemeral().node_id, str(i)) for i in range(3)]
    remember(home, *members)
    assert list(known.load(home).values()) == ["1", "2"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"version": 2, "nodes": {}}',
        '{"version": 1, "nodes": {"me": "x"}}',
        json.dumps({"version": 1, "nodes": {FRIEND.node: "n" * 49}}),
        '{"version": 1, "nodes": {}, "more": 1}',
    ],
)
def test_a_damaged_list_is_named(home: Home, content: str) -> None:
    with home.changing() as change:
        change.write(known.FILE, Secret(content.encode()))
    path = home.path / known.FILE
    with pytest.raises(ConfigError, match=f"{path}: .*only names are lost"):
        known.load(home)


def test_a_member_is_shown_by_name_and_short_id() -> None:
    shown = str(Member(FRIEND.node, "kitchen-pc"))
    assert shown == f'"kitchen-pc" ({FRIEND.node[:4]}-{FRIEND.node[4:8]})'
