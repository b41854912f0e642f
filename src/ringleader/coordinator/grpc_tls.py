"""Credentials of gRPC from certificates in PEM: for the server and for clients."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from ringleader.identity.certificates.pem import PemCredentials

TlsSource = Callable[[], PemCredentials]
"""Returns the certificates to use now; another object when they have changed."""


def server_credentials(source: TlsSource) -> grpc.ServerCredentials:
    """Return credentials that ask ``source`` anew for each connection.

    Clients must show a certificate. A configuration is returned every time, also an
    unchanged one: otherwise gRPC would resume sessions without checking certificates.
    """

    def fetch() -> grpc.ServerCertificateConfiguration:
        pem = source()
        return grpc.ssl_server_certificate_configuration(
            [(pem.key.reveal(), pem.certificate)], pem.authority
        )

    return grpc.dynamic_ssl_server_credentials(
        fetch(), fetch, require_client_authentication=True
    )


def channel_credentials(pem: PemCredentials) -> grpc.ChannelCredentials:
    """Return the credentials of a client."""
    return grpc.ssl_channel_credentials(
        root_certificates=pem.authority,
        private_key=pem.key.reveal(),
        certificate_chain=pem.certificate,
    )
