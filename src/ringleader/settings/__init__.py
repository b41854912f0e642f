"""Settings from the environment; no other package reads environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Self

from ringleader.errors import ConfigError
from ringleader.settings.numbers import number
from ringleader.settings.tls_files import TlsFiles, tls_files


def switch_interval_s(env: Mapping[str, str] | None = None) -> float:
    """Return the GIL switch interval during operations; 0 leaves Python's default."""
    env = os.environ if env is None else env
    text = env.get("RINGLEADER_SWITCH_INTERVAL_S", "5e-5")
    try:
        value = float(text)
    except ValueError as exc:
        text = f"RINGLEADER_SWITCH_INTERVAL_S is {text!r}, not a number of seconds"
        raise ConfigError(text) from exc
    if not 0 <= value <= 1:
        raise ConfigError(f"RINGLEADER_SWITCH_INTERVAL_S is {text}; use 0 to 1 s")
    return value


MAX_HELPER_THREADS = 63
"""More than any machine has use for; a larger number is a mistake."""


def helper_threads(env: Mapping[str, str] | None = None) -> int | None:
    """Return the helper threads per rank, RINGLEADER_HELPER_THREADS; None: auto."""
    env = os.environ if env is None else env
    name = "RINGLEADER_HELPER_THREADS"
    if env.get(name, "auto") in ("", "auto"):
        return None
    count = number(env, name)
    if not 0 <= count <= MAX_HELPER_THREADS:
        raise ConfigError(f"{name} is {count}; use auto, or 0 to {MAX_HELPER_THREADS}")
    return count


def shares_buckets(env: Mapping[str, str] | None = None) -> bool:
    """Return whether ranks of a host share DDP's buckets: RINGLEADER_SHARED_BUCKETS.

    They do unless it is 0: in shared memory, or in one exchange on a GPU.
    """
    env = os.environ if env is None else env
    name = "RINGLEADER_SHARED_BUCKETS"
    return env.get(name, "") == "" or is_on(env, name)


def stages_on_host(env: Mapping[str, str] | None = None) -> bool:
    """Return whether tensors of accelerators may pass through host memory.

    They may unless RINGLEADER_HOST_STAGING is 0.
    """
    env = os.environ if env is None else env
    name = "RINGLEADER_HOST_STAGING"
    return env.get(name, "") == "" or is_on(env, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """How ranks are connected, where the program does not say."""

    transport: str
    connections: int
    addresses: tuple[str, ...]
    """Addresses of this machine as the others see it; all are tried. Empty: found
    automatically."""
    credentials: str
    """Path of the credentials that encrypt and authenticate links; empty: none."""
    ports: range
    """Ports on which ranks listen; port 0 is any free one."""
    tls: TlsFiles | None = None
    """The user's own certificates, which come before ``credentials``."""
    plaintext: bool = False
    """True if the user wants links to other machines without encryption."""
    intra_host: str = ""
    """Backend of torch that ranks of one host use among themselves."""
    connect_timeout_s: float | None = None
    """Limit for each connection to a peer; None: that of the forming of the group."""
    connect_tries: int | None = None
    """How often the addresses of a peer are tried; None: while there is time."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> Self:
        """Read RINGLEADER_TRANSPORT and the other variables of these fields."""
        env = os.environ if env is None else env
        connections = 1
        if "RINGLEADER_CONNECTIONS" in env:
            connections = number(env, "RINGLEADER_CONNECTIONS")
        if connections < 1:
            raise ConfigError(f"RINGLEADER_CONNECTIONS is {connections}; use 1 or more")
        credentials = env.get("RINGLEADER_CREDENTIALS", "")
        tls, plaintext = tls_files(env=env), is_on(env, "RINGLEADER_PLAINTEXT")
        if tls is not None and plaintext:
            text = "RINGLEADER_PLAINTEXT is 1 and RINGLEADER_TLS_CERT is set; encrypted"
            raise ConfigError(f"{text} or not? unset one of them")
        return cls(
            transport=env.get("RINGLEADER_TRANSPORT", "auto"),
            connections=connections,
            addresses=_addresses(env),
            credentials="" if plaintext else credentials,
            ports=tensor_ports(env),
            tls=tls,
            plaintext=plaintext,
            intra_host=env.get("RINGLEADER_INTRA_HOST", ""),
            connect_timeout_s=_positive_seconds(env, "RINGLEADER_CONNECT_TIMEOUT_S"),
            connect_tries=_positive(env, "RINGLEADER_CONNECT_TRIES"),
        )


def _positive(env: Mapping[str, str], name: str) -> int | None:
    """Return a whole number of at least 1; None if it is not set."""
    if not env.get(name):
        return None
    if (value := number(env, name)) < 1:
        raise ConfigError(f"{name} is {value}; use 1 or more")
    return value


def _positive_seconds(env: Mapping[str, str], name: str) -> float | None:
    """Return a time; None if it is not set."""
    text = env.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError as exc:
        raise ConfigError(f"{name} is {text!r}, not a number of seconds") from exc
    if not 0 < value < inf:
        raise ConfigError(f"{name} is {text}; use more than 0 s")
    return value


def _addresses(env: Mapping[str, str]) -> tuple[str, ...]:
    text = env.get("RINGLEADER_ADDRESS", "")
    if not text.strip():
        return ()
    found = tuple(dict.fromkeys(each.strip() for each in text.split(",")))
    if "" in found:
        raise ConfigError(f"RINGLEADER_ADDRESS is {text!r}; write host,host")
    return found


def tensor_ports(env: Mapping[str, str] | None = None) -> range:
    """Return the ports for tensors, RINGLEADER_PORTS; port 0 is any free one."""
    env = os.environ if env is None else env
    text = env.get("RINGLEADER_PORTS", "")
    if not text:
        return range(1)
    first, _, last = text.partition("-")
    try:
        ports = range(int(first), int(last or first) + 1)
    except ValueError as exc:
        raise ConfigError(f"RINGLEADER_PORTS is {text!r}; write 29600-29650") from exc
    if not ports or not 0 < ports[0] <= ports[-1] < 65536:
        raise ConfigError(f"RINGLEADER_PORTS is {text!r}; use ports from 1 to 65535")
    return ports


def is_on(env: Mapping[str, str], name: str) -> bool:
    """Return whether a switch is 1; raises ConfigError unless it is 1, 0 or unset."""
    value = env.get(name, "")
    if value not in ("", "0", "1"):
        raise ConfigError(f"{name} is {value!r}; use 1 or 0")
    return value == "1"


def peers(env: Mapping[str, str] | None = None) -> str:
    """Return peers to dial besides those found: RINGLEADER_PEERS."""
    env = os.environ if env is None else env
    return env.get("RINGLEADER_PEERS", "")


def interfaces(env: Mapping[str, str] | None = None) -> list[str]:
    """Return the interfaces to use: RINGLEADER_INTERFACES, as ``eth0,wlan0``."""
    env = os.environ if env is None else env
    return [name for name in env.get("RINGLEADER_INTERFACES", "").split(",") if name]


def node_name(env: Mapping[str, str] | None = None) -> str:
    """Return the name of this machine, RINGLEADER_NAME; empty: its host name."""
    env = os.environ if env is None else env
    return env.get("RINGLEADER_NAME", "")


def compress(env: Mapping[str, str] | None = None) -> str:
    """Return the compression of DDP gradients, RINGLEADER_COMPRESS; empty: none."""
    env = os.environ if env is None else env
    return env.get("RINGLEADER_COMPRESS", "")


class DefaultBackend(StrEnum):
    """Which groups become ours although they are not named so: RINGLEADER_DEFAULT."""

    NONE = "0"
    UNNAMED = "unnamed"
    """Those without a name: what ``ringleader run`` sets by itself."""
    LIBRARIES = "libraries"
    """Those without a name, and those of Gloo, which a library chose: what ``ringleader
    run`` sets by itself for a program that does not name Gloo."""
    ALL = "1"
    """Those without a name, and those of Gloo: the user says so."""


def default_backend(env: Mapping[str, str] | None = None) -> DefaultBackend:
    """Return what we replace: RINGLEADER_DEFAULT, nothing if it is not set."""
    value = (os.environ if env is None else env).get("RINGLEADER_DEFAULT", "")
    try:
        return DefaultBackend(value or "0")
    except ValueError:
        text = "use 1 or 0 (or unnamed or libraries)"
        raise ConfigError(f"RINGLEADER_DEFAULT is {value!r}; {text}") from None


def master_address(env: Mapping[str, str] | None = None) -> str:
    """Return the address of the launcher's store; empty if there is none."""
    env = os.environ if env is None else env
    return env.get("MASTER_ADDR", "")


def round_id(env: Mapping[str, str] | None = None) -> str:
    """Return the id of the round that this worker is in: RINGLEADER_ROUND."""
    env = os.environ if env is None else env
    return env.get("RINGLEADER_ROUND", "")


def error_file(env: Mapping[str, str] | None = None) -> str:
    """Return where a worker records its failure: TORCHELASTIC_ERROR_FILE."""
    env = os.environ if env is None else env
    return env.get("TORCHELASTIC_ERROR_FILE", "")


def shutdown_timeout_s(default: int, env: Mapping[str, str] | None = None) -> int:
    """Return how long workers may take to end: TORCH_ELASTIC_SHUTDOWN_TIMEOUT."""
    env = os.environ if env is None else env
    name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    return max(0, number(env, name)) if name in env else default


def environment() -> dict[str, str]:
    """Return all variables of this process, for one that it starts."""
    return dict(os.environ)


def replace_all(variables: Mapping[str, str]) -> None:
    """Replace the whole environment of this process."""
    os.environ.clear()
    os.environ.update(variables)


def export(values: Mapping[str, str]) -> dict[str, str | None]:
    """Set variables for this process and the processes it starts.

    Returns the values before, None for a variable that was not set; see ``restore``.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    return before


def restore(before: Mapping[str, str | None]) -> None:
    """Undo ``export`` and ``export_interface``, given what they returned."""
    for name, value in before.items():
        _exported_interfaces.pop(name, None)
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


_INTERFACE_FORMS = {
    "GLOO_SOCKET_IFNAME": "{}",
    "TP_SOCKET_IFNAME": "{}",
    "NCCL_SOCKET_IFNAME": "={}",  # without "=" it would be a prefix
}
_exported_interfaces: dict[str, str] = {}
"""What ``export_interface`` has set, as opposed to the user."""


def export_interface(name: str) -> dict[str, str | None]:
    """Let Gloo, TensorPipe and NCCL use the network interface ``name``.

    Without it they use the address that the host name resolves to, which is 127.0.1.1
    on Debian. Variables that the user has set are left as they are. Returns the values
    before, as ``export`` does.
    """
    values = {
        variable: form.format(name)
        for variable, form in _INTERFACE_FORMS.items()
        if os.environ.get(variable) == _exported_interfaces.get(variable)
    }
    _exported_interfaces.update(values)
    return export(values)


def home_directory(env: Mapping[str, str] | None = None) -> Path:
    """Return the directory of keys: RINGLEADER_HOME, or ``~/.ringleader``."""
    env = os.environ if env is None else env
    text = env.get("RINGLEADER_HOME", "")
    try:
        path = Path(text).expanduser() if text else Path.home() / ".ringleader"
    except RuntimeError as exc:
        raise ConfigError("no home directory; set RINGLEADER_HOME") from exc
    if not path.is_absolute():
        raise ConfigError(f"RINGLEADER_HOME is {text!r}; use an absolute path")
    return path


def link_kind(env: Mapping[str, str] | None = None) -> str:
    """Return what connects this machine, as "Wi-Fi": RINGLEADER_LINK_KIND."""
    env = os.environ if env is None else env
    return env.get("RINGLEADER_LINK_KIND", "")
