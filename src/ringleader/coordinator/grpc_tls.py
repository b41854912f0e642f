"""Credentials of gRPC from certificates in PEM: for the server and for clients."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from ringleader.identity.certificates.pem import PemCredentials

TlsSource = Callable[[], PemCredentials]
"""Returns the certificates to use now; another object when they have changed."""


def server_credentials(pem: PemCredentials) -> grpc.ServerCredentials:
    """Return the credentials of a server; clients must show a certificate.

    Not gRPC's dynamic ones, which ask for certificates at each connection: with them
    grpcio 1.85.1 crashed when hundreds of clients connected (decision 15). A server
    with new certificates listens anew instead.
    """
    return grpc.ssl_server_credentials(
        [(pem.key.reveal(), pem.certificate)],
        root_certificates=pem.authority,
        require_client_auth=True,
    )


def channel_credentials(pem: PemCredentials) -> grpc.ChannelCredentials:
    """Return the credentials of a client."""
    return grpc.ssl_channel_credentials(
        root_certificates=pem.authority,
        private_key=pem.key.reveal(),
        certificate_chain=pem.certificate,
    )
