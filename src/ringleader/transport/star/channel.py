"""gRPC channels and servers of a star: limits, keep-alive and TLS."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import grpc

from ringleader.errors import ConfigError
from ringleader.grpc_server import new_server
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.transport.listening_socket import listen
from ringleader.transport.star.pump import MAX_DATA_BYTES
from ringleader.transport.tcp_socket import Address

WINDOW_BYTES = 1 << 20
"""Bytes of a stream that may be under way unread. It bounds the memory of a stream, and
its speed: 50 MB/s at a round trip of 20 ms."""
KEEPALIVE_S = 10
"""A channel without any answer for twice this time is lost. It also keeps proxies from
closing a channel that is idle while ranks compute."""

_COMMON = (
    ("grpc.max_receive_message_length", MAX_DATA_BYTES + 4096),
    ("grpc.http2.bdp_probe", 0),  # it would raise the window without a limit
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER = (
    *_COMMON,
    ("grpc.so_reuseport", 0),  # else two servers could share a port in silence
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_S * 500),
    ("grpc.http2.max_ping_strikes", 0),
)
_CLIENT = (
    *_COMMON,
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # ranks of one process share nothing
)


def open_channel(address: Address, pem: PemCredentials | None) -> Any:  # noqa: ANN401 - gRPC has no types
    """Return a channel to rank 0; it connects with the first call."""
    host, port = address
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if pem is None:
        return grpc.aio.insecure_channel(target, options=_CLIENT)
    options: tuple[tuple[str, object], ...] = _CLIENT
    if pem.host_name:
        options = (*options, ("grpc.ssl_target_name_override", pem.host_name))
    credentials = grpc.ssl_channel_credentials(
        pem.authority, pem.key.reveal(), pem.certificate
    )
    return grpc.aio.secure_channel(target, credentials, options=options)


def open_server(host: str, ports: range, pem: PemCredentials | None) -> tuple[Any, int]:
    """Return a server, not started yet, and its port: the first free one of a range.

    Raises ConfigError if no port is free.
    """
    with listen(host, ports) as free:  # a server of gRPC that cannot bind is no use
        port: int = free.getsockname()[1]
    server = new_server(_SERVER)
    address = f"[{host or '::'}]:{port}" if ":" in (host or "::") else f"{host}:{port}"
    try:
        if pem is None:
            return server, int(server.add_insecure_port(address))
        credentials = grpc.ssl_server_credentials(
            [(pem.key.reveal(), pem.certificate)],
            root_certificates=pem.authority,
            require_client_auth=True,
        )
        return server, int(server.add_secure_port(address, credentials))
    except RuntimeError as exc:
        raise ConfigError(f"gRPC cannot listen on {address}: {exc}") from exc


def host_of(peer: str) -> str:
    """Return the host of a peer as gRPC writes it: "ipv4:1.2.3.4:5"."""
    address = unquote(peer.partition(":")[2])
    return address.rpartition(":")[0].strip("[]")
