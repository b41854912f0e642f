"""Node keys: written atomically, one per running node, never printed."""

from __future__ import annotations

import os
import pickle
import re
import signal
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import ConfigError, InternalError
from ringleader.identity import node_key
from ringleader.identity.node_key import NodeKey, claim, first_key, key_files
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


# -- names -------------------------------------------------------------------------


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32))
def test_an_id_is_the_public_key_in_base32(public: bytes) -> None:
    node = node_key.node_id(public)
    assert re.fullmatch("[a-z2-7]{52}", node)
    assert node_key.public_key(node) == (None if node_key.is_weak(public) else public)


def test_honest_keys_are_not_weak() -> None:
    assert not any(node_key.is_weak(NodeKey.ephemeral().public) for _ in range(50))
    assert node_key.public_key("a" * 52) is None, "of order four"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a" * 51,
        "a" * 53,
        "A" * 52,
        "a" * 51 + "b",
        "1" * 52,
        "ä" * 52,
        "a" * 51 + "=",
    ],
)
def test_what_is_no_id_has_no_key(text: str) -> None:
    assert node_key.public_key(text) is None


def test_a_signature_is_that_of_the_public_key() -> None:
    key = NodeKey.ephemeral()
    Ed25519PublicKey.from_public_bytes(key.public).verify(key.sign(b"text"), b"text")


def test_a_key_shows_its_id_and_nothing_else() -> None:
    key = NodeKey.ephemeral()
    assert repr(key) == f"<key of node {key.node_id[:4]}-{key.node_id[4:8]}>"
    seed = key.to_text().reveal().decode().split()[-1]
    assert seed not in repr(vars(type(key))) + repr(key)
    with pytest.raises(InternalError):
        pickle.dumps(key)


# -- files -------------------------------------------------------------------------


def test_a_node_that_starts_again_is_the_same_node(home: Home) -> None:
    with claim(home) as first:
        node = first.key.node_id
    with claim(home) as second:
        assert second.key.node_id == node
    assert first_key(home).node_id == node
    assert key_files(home) == ["node_key"]
    assert stat.S_IMODE((home.path / "node_key").stat().st_mode) == 0o600


def test_nodes_on_one_host_take_one_key_each(home: Home) -> None:
    with ExitStack() as stack:
        claimed = [stack.enter_context(claim(home)) for _ in range(3)]
        assert [each.number for each in claimed] == [1, 2, 3]
        assert len({each.key.node_id for each in claimed}) == 3
        assert key_files(home) == ["node_key", "node_key-2", "node_key-3"]
        claimed[1].close()
        with claim(home) as again:
            assert again.number == 2
            assert again.key.node_id == claimed[1].key.node_id


def test_commands_use_the_first_key_while_its_node_runs(home: Home) -> None:
    with claim(home) as running:
        assert first_key(home).node_id == running.key.node_id


CLAIM = """
import sys
from pathlib import Path
from ringleader.identity.storage.home import Home
from ringleader.identity.node_key import claim

claimed = claim(Home(Path(sys.argv[1])))
print(claimed.number, claimed.key.node_id, flush=True)
sys.stdin.read()
"""


def test_a_killed_node_frees_its_key(home: Home) -> None:
    argv = [sys.executable, "-c", CLAIM, str(home.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        number, node = child.stdout.readline().split()
        assert number == "1"
        with claim(home) as beside:
            assert beside.number == 2
        os.kill(child.pid, signal.SIGKILL)
        child.wait(60)
    with claim(home) as after:
        assert (after.number, after.key.node_id) == (1, node)


def test_many_processes_at_once_get_keys_of_their_own(home: Home) -> None:
    argv = [sys.executable, "-c", CLAIM, str(home.path)]
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
            )
            for _ in range(4)
        ]
        lines = [child.stdout.readline().split() for child in children if child.stdout]
        for child in children:
            child.kill()
    assert sorted(number for number, _ in lines) == ["1", "2", "3", "4"]
    assert len({node for _, node in lines}) == 4


def damaged() -> dict[str, bytes]:
    whole = NodeKey.ephemeral().to_text().reveal()
    other = NodeKey.ephemeral().to_text().reveal()
    mixed = b"\n".join([*whole.split(b"\n")[:2], *other.split(b"\n")[2:]])
    return {
        "empty": b"",
        "truncated": whole[:-10],
        "no newline": whole[:-1],
        "more": whole + b"\n",
        "binary": bytes(range(128, 250)),
        "another key": mixed,
        "upper case": whole.replace(b"key ", b"key A"),
        "other title": whole.replace(b"key 1", b"key 2"),
    }


@pytest.mark.parametrize("kind", damaged())
def test_a_damaged_key_is_named_and_never_replaced(home: Home, kind: str) -> None:
    content = damaged()[kind]
    with home.writing() as change:
        change.write("node_key", Secret(content))
    path = home.path / "node_key"
    for use in (claim, first_key):
        with pytest.raises(ConfigError, match=f"{path}: not a node key"):
            use(home)
    assert path.read_bytes() == content
    path.unlink()
    with claim(home) as claimed:
        assert claimed.number == 1


def test_an_open_key_is_refused(home: Home) -> None:
    first_key(home)
    (home.path / "node_key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        claim(home)


def test_a_loop_that_starts_nodes_is_stopped(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_key, "MAX_NODES", 2)
    with claim(home), claim(home), pytest.raises(ConfigError, match="2 nodes run here"):
        claim(home)
