"""The coordinator is named by an option, an argument, a URL or the environment."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from ringleader.errors import ConfigError
from ringleader.node.launch import agent_settings
from ringleader.node.launch.agent_settings import agent_config
from ringleader.node.launch.init_method import rendezvous


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COORDINATOR", "MDNS", "PLAINTEXT", "PEERS"):
        monkeypatch.delenv(f"RINGLEADER_{name}", raising=False)


def test_without_a_coordinator_nodes_are_found_by_multicast() -> None:
    config = agent_config()
    assert (config.coordinator, config.uses_mdns) == ("", True)


def test_a_coordinator_turns_multicast_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not agent_config(coordinator="h:1").uses_mdns
    assert agent_config(coordinator="h:1", uses_mdns=True).uses_mdns
    monkeypatch.setenv("RINGLEADER_COORDINATOR", "h:2")
    assert agent_config().coordinator == "h:2"
    assert not agent_config().uses_mdns
    assert agent_config(coordinator="[::1]:3").coordinator == "[::1]:3"
    monkeypatch.setenv("RINGLEADER_MDNS", "1")
    assert agent_config().uses_mdns


@pytest.mark.parametrize("text", ["host", "host:0", "host:70000", "a:1,b:2", "::1:5:"])
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        agent_config(coordinator=text)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        agent_settings,
        "find_spec",
        lambda name: None if name == "grpc" else find_spec(name),
    )
    with pytest.raises(ConfigError, match=r"pip install 'ringleader\[coordinator\]'"):
        agent_config(coordinator="h:1")
    assert agent_config().coordinator == ""


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("grpc://?nodes=2", "write grpc://HOST:PORT"),
        ("grpc://h?nodes=2", "write HOST:PORT"),
        ("grpc://h:1?rank=0", "leave rank out"),
        ("grpc://h:1?noodles=2", "no option 'noodles'"),
        ("grpc://h:1?nodes=two", "grpc://: invalid literal"),
    ],
)
def test_a_wrong_url_is_refused_before_anything_starts(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        next(rendezvous(url))
