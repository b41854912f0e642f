"""The secret of a cluster: what comes from a phrase, and the file it lives in."""

from __future__ import annotations

import contextlib
import hashlib
import json
import traceback
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import ConfigError
from ringleader.identity import cluster_secret, join_phrase
from ringleader.identity.cluster_secret import ClusterSecret, clean_name
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import Home

ZEROS = ClusterSecret(root=Secret(bytes(32)))
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


# -- derivation --------------------------------------------------------------------


def test_a_phrase_always_gives_the_same_root() -> None:
    """Golden: another value here would part every cluster there is."""
    cluster = ClusterSecret.from_phrase(join_phrase.new(bytes), name="home")
    assert (
        cluster.root.reveal().hex()
        == "688702b4ac63c4d4a0ef299e6abe54a1c8e5166d8798ef0ed54351ac1bba4d7c"
    )
    typed = Secret("  " + join_phrase.new(bytes).show().upper().replace("-", "  "))
    again = ClusterSecret.from_phrase(join_phrase.parse(typed))
    assert again.root == cluster.root, "however it is typed"


def test_a_root_always_gives_the_same_keys() -> None:
    """Golden: these must be the same on every machine and in every version."""
    assert ZEROS.namespace.hex() == "4a5c9e1899b980e67588132562b15ec7"
    assert ZEROS.tag == "jjoj-4gez"
    assert (
        ZEROS.mdns_key().reveal().hex()
        == "a9a4b947215ff5df3f149dccfba8ef26a3c6c10ffd45c3bdebf1622a7ca3d4fd"
    )
    assert (
        ZEROS.sni_key().reveal().hex()
        == "6cc2495b6634d15eb6c8a86c50d9e76ea1c78ca6e29cca2e8df844a3e45eb1dc"
    )
    assert (
        hex(ZEROS.authority_scalar())
        == "0x68044f2c51f1b374cf867032c269b89391880c3c01757f12bbd5e7854c8953d5"
    )


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32))
def test_keys_differ_from_each_other_and_between_clusters(root: bytes) -> None:
    cluster = ClusterSecret(root=Secret(root))
    scalar = cluster.authority_scalar()
    assert 1 <= scalar < P256_ORDER
    keys = {
        cluster.mdns_key().reveal(),
        cluster.sni_key().reveal(),
        cluster.namespace + bytes(16),
        scalar.to_bytes(32, "big"),
        root,
    }
    assert len(keys) == 5
    if root != bytes(32):
        assert cluster.namespace != ZEROS.namespace


def test_a_cluster_shows_its_name_and_tag_only() -> None:
    cluster = ClusterSecret(root=Secret(b"r" * 32), name="home")
    assert "rrr" not in repr(cluster)
    assert cluster.title == f'"home" ({cluster.tag})'
    assert ZEROS.title == ZEROS.tag


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("home", "home"),
        ("  my   home\n", "my home"),
        ("\x1b[31mred\x07", "[31mred"),
        ("a\u202eb\u200bc", "a b c"),
        ("z" * 100, "z" * 48),
        ("\u00e4" * 40, "\u00e4" * 24),
        ("\x00\x01", ""),
    ],
)
def test_names_are_made_fit_for_a_screen(typed: str, kept: str) -> None:
    assert clean_name(typed) == kept


@settings(deadline=None)
@given(st.text(max_size=200))
def test_a_clean_name_is_printable_short_and_stays_so(text: str) -> None:
    name = clean_name(text)
    assert name.isprintable()
    assert len(name.encode()) <= 48
    assert clean_name(name) == name


# -- the file ----------------------------------------------------------------------


def write(home: Home, content: bytes) -> None:
    with home.writing() as change:
        change.write(cluster_secret.FILE, Secret(content))


def test_a_stored_cluster_is_loaded(home: Home) -> None:
    assert cluster_secret.load(home) is None
    node = NodeKey.ephemeral().node_id
    cluster = ClusterSecret(root=Secret(b"r" * 32), name="Küche", epoch=7)
    cluster = cluster.administered_by(node)
    with home.writing() as change:
        cluster_secret.store(change, cluster)
    loaded = cluster_secret.load(home)
    assert loaded == cluster
    assert loaded is not None
    assert loaded.admins == (node,)


def good() -> dict[str, object]:
    root = "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI="
    return {"version": 1, "name": "x", "root": root, "epoch": 1, "admins": []}


def signed(content: dict[str, object]) -> bytes:
    """Encode the content with its checksum."""
    blank = json.dumps({**content, "sha256": ""}, separators=(",", ":"))
    digest = hashlib.sha256(blank.encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}).encode()


def test_the_format_of_the_file_is_pinned(home: Home) -> None:
    write(home, signed(good()))
    assert cluster_secret.load(home) == ClusterSecret(root=Secret(b"r" * 32), name="x")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"root": "cnJy"},
        {"root": 5},
        {"epoch": 0},
        {"epoch": "1"},
        {"name": "n" * 49},
        {"admins": ["nobody"]},
        {"admins": ["a" * 52] * 5},
        {"more": 1},
    ],
    ids=str,
)
def test_a_changed_file_is_refused_by_name(home: Home, change: object) -> None:
    assert isinstance(change, dict)
    write(home, signed({**good(), **change}))
    with pytest.raises(ConfigError, match=f"{home.path / 'cluster'}: damaged"):
        cluster_secret.load(home)


def test_a_flipped_bit_is_never_another_cluster(home: Home) -> None:
    whole = signed(good())
    write(home, whole)
    expected = cluster_secret.load(home)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        write(home, bytes(damaged))
        with contextlib.suppress(ConfigError):
            assert cluster_secret.load(home) == expected, place


def test_a_file_from_before_checksums_is_named_as_such(home: Home) -> None:
    write(home, json.dumps(good()).encode())
    with pytest.raises(ConfigError, match="of a release before checksums"):
        cluster_secret.load(home)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 3000, json.dumps(good()).encode()[:-9]]
)
def test_a_damaged_file_is_refused_and_its_secret_not_shown(
    home: Home, content: bytes
) -> None:
    write(home, content)
    with pytest.raises(ConfigError, match="run 'ringleader join --force'") as error:
        cluster_secret.load(home)
    trace = traceback.TracebackException.from_exception(
        error.value, capture_locals=True
    )
    shown = "".join(line for frame in trace.stack[1:] for line in str(frame.locals))
    assert "cnJycnJy" not in shown
    assert "<secret>" in shown
