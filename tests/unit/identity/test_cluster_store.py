"""Storing and forgetting a cluster, and the known nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringleader.errors import ConfigError
from ringleader.identity import cluster_secret, cluster_store, known_nodes
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.known_nodes import KnownNode
from ringleader.identity.node_key import NodeKey, claim, first_key, key_files
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import Home

ONE = ClusterSecret(root=Secret(b"1" * 32), name="one")
TWO = ClusterSecret(root=Secret(b"2" * 32), name="two")
FRIEND = KnownNode(NodeKey.ephemeral().node_id, "kitchen-pc")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_cluster_is_entered_once(home: Home) -> None:
    cluster_store.check_not_joined(home)
    assert cluster_store.store_cluster(home, ONE, met=FRIEND)
    assert cluster_secret.load(home) == ONE
    assert known_nodes.load(home) == {FRIEND.node: "kitchen-pc"}
    assert not cluster_store.store_cluster(home, ONE), "already in it"


def test_the_same_phrase_again_does_not_lose_the_name(home: Home) -> None:
    cluster_store.store_cluster(home, ONE)
    assert not cluster_store.store_cluster(home, ClusterSecret(root=ONE.root))
    assert cluster_secret.load(home) == ONE


def test_another_cluster_needs_a_word(home: Home) -> None:
    cluster_store.store_cluster(home, ONE, met=FRIEND)
    for refused in (
        lambda: cluster_store.store_cluster(home, TWO),
        lambda: cluster_store.check_not_joined(home),
    ):
        with pytest.raises(ConfigError, match=r'in cluster "one" .* already; run'):
            refused()
    assert cluster_secret.load(home) == ONE
    assert cluster_store.store_cluster(home, TWO, replace=True)
    assert cluster_secret.load(home) == TWO
    assert known_nodes.load(home) == {}, "they were nodes of the other cluster"


def test_leaving_deletes_secret_keys_and_known_nodes(home: Home) -> None:
    cluster_store.store_cluster(home, ONE, met=FRIEND)
    old = first_key(home).node_id
    with claim(home), claim(home):
        pass
    (home.path / "notes").write_text("mine")
    assert cluster_store.forget_cluster(home) == ONE
    assert home.names() == ["lock", "notes"], "what is not ours stays"
    assert cluster_store.forget_cluster(home) is None
    assert first_key(home).node_id != old


def test_nobody_leaves_while_a_node_runs(home: Home) -> None:
    cluster_store.store_cluster(home, ONE)
    with claim(home), claim(home) as second:
        second.close()
        with pytest.raises(ConfigError, match="node_key is in use: a node runs"):
            cluster_store.forget_cluster(home)
        assert cluster_secret.load(home) == ONE
        assert key_files(home) == ["node_key", "node_key-2"]
    assert cluster_store.forget_cluster(home) == ONE


def test_leaving_mends_a_damaged_file(home: Home) -> None:
    with home.writing() as change:
        change.write(cluster_secret.FILE, Secret(b"garbage"))
        change.write("node_key", Secret(b"garbage"))
    with pytest.raises(ConfigError, match="join --force"):
        cluster_store.store_cluster(home, ONE)
    assert cluster_store.forget_cluster(home) is None
    assert cluster_store.store_cluster(home, ONE)


def test_joining_by_force_mends_a_damaged_file_and_keeps_the_key(home: Home) -> None:
    """Also files from before checksums: the list of known nodes goes with it."""
    before = first_key(home).node_id
    with home.writing() as change:
        change.write(cluster_secret.FILE, Secret(b'{"version": 1}'))
        change.write(known_nodes.FILE, Secret(b'{"version": 1, "nodes": {}}'))
    assert cluster_store.store_cluster(home, ONE, met=FRIEND, replace=True)
    assert cluster_secret.load(home) == ONE
    assert first_key(home).node_id == before


# -- known nodes -------------------------------------------------------------------


def remember(home: Home, *members: KnownNode) -> None:
    with home.writing() as change:
        for member in members:
            known_nodes.remember(home, change, member)


def test_a_node_that_is_met_again_gets_its_new_name(home: Home) -> None:
    other = KnownNode(NodeKey.ephemeral().node_id, "desk")
    remember(home, FRIEND, other, KnownNode(FRIEND.node, "living\nroom"))
    assert known_nodes.load(home) == {other.node: "desk", FRIEND.node: "living room"}


def test_the_oldest_acquaintance_makes_room(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_nodes, "MAX_NODES", 2)
    members = [KnownNode(NodeKey.ephemeral().node_id, str(i)) for i in range(3)]
    remember(home, *members)
    assert list(known_nodes.load(home).values()) == ["1", "2"]


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
    with home.writing() as change:
        change.write(known_nodes.FILE, Secret(content.encode()))
    path = home.path / known_nodes.FILE
    with pytest.raises(ConfigError, match=f"{path}: .*only names are lost"):
        known_nodes.load(home)


def test_a_member_is_shown_by_name_and_short_id() -> None:
    shown = str(KnownNode(FRIEND.node, "kitchen-pc"))
    assert shown == f'"kitchen-pc" ({FRIEND.node[:4]}-{FRIEND.node[4:8]})'
