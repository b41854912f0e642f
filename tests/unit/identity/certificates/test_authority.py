"""Certificates: the same authority everywhere, and every way to lie about a node."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import PeerUntrusted
from ringleader.identity.certificates.authority import (
    MEMBER_HOST_NAME,
    Authority,
    certificate_host_name,
)
from ringleader.identity.certificates.cert_binding import (
    EXTENSION,
    EXTENSION_BYTES,
    bind,
    key_hash,
)
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.ids import short

HOME = Authority.of(ClusterSecret(root=Secret(bytes(32))))
OTHER = Authority.of(ClusterSecret(root=Secret(b"\1" * 32)))
ME, YOU = NodeKey.ephemeral(), NodeKey.ephemeral()


def extension_of(der: bytes) -> bytes:
    certificate = x509.load_der_x509_certificate(der)
    found = certificate.extensions.get_extension_for_oid(EXTENSION).value
    assert isinstance(found, x509.UnrecognizedExtension)
    return found.value


def forge(
    extension: bytes | None,
    *,
    by: Authority = HOME,
    key: ec.EllipticCurvePrivateKey | None = None,
) -> bytes:
    """A certificate that a member could issue, with whatever extension it likes."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.load_der_x509_certificate(by.certificate).subject)
        .public_key(key.public_key())
        .serial_number(5)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2100, 1, 1, tzinfo=UTC))
    )
    if extension is not None:
        value = x509.UnrecognizedExtension(EXTENSION, extension)
        builder = builder.add_extension(value, critical=False)
    return builder.sign(by._key, SHA256()).public_bytes(Encoding.DER)


# -- the authority -----------------------------------------------------------------


def test_the_authority_is_the_same_on_every_machine_to_the_last_byte() -> None:
    """Golden: made from 32 zero bytes."""
    again = Authority.of(ClusterSecret(root=Secret(bytes(32)), name="other name"))
    assert again.certificate == HOME.certificate
    assert sha256(HOME.certificate).hexdigest() == (
        "f9b210c689fead4d5102b0e96ae0fbf0fde50307a3f07ed68ed00af51b148a9c"
    )


@pytest.mark.parametrize("der", [HOME.certificate, HOME.issue(ME).certificate])
def test_nothing_expires(der: bytes) -> None:
    certificate = x509.load_der_x509_certificate(der)
    assert certificate.not_valid_before_utc == datetime(1970, 1, 1, tzinfo=UTC)
    assert certificate.not_valid_after_utc.year == 9999


def test_a_leaf_names_its_node_and_cannot_issue() -> None:
    certificate = x509.load_der_x509_certificate(HOME.issue(ME).certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [
        certificate_host_name(ME.node_id),
        MEMBER_HOST_NAME,
    ]
    basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert not basic.value.ca
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)


def test_every_process_has_a_tls_key_of_its_own() -> None:
    one, two = HOME.issue(ME), HOME.issue(ME)
    assert one.key != two.key
    assert HOME.verify(one.certificate) == HOME.verify(two.certificate) == ME.node_id


def test_an_authority_shows_nothing() -> None:
    assert repr(HOME) == "<authority>"


# -- verifying ---------------------------------------------------------------------


def test_a_member_is_recognised() -> None:
    leaf = HOME.issue(YOU).certificate
    assert HOME.verify(leaf, expect=YOU.node_id, own=ME.node_id) == YOU.node_id


def test_a_member_that_was_not_expected_is_refused() -> None:
    leaf = HOME.issue(YOU).certificate
    text = f"unexpected node: {short(YOU.node_id)} answers, and not {short(ME.node_id)}"
    with pytest.raises(PeerUntrusted, match=text):
        HOME.verify(leaf, expect=ME.node_id)


def test_our_own_identity_is_a_clone() -> None:
    leaf = HOME.issue(ME).certificate
    with pytest.raises(
        PeerUntrusted, match=r"cloned identity.*home directory was copi"
    ):
        HOME.verify(leaf, own=ME.node_id)


def test_a_member_cannot_claim_the_key_of_another() -> None:
    """YOU has the authority and its own node key, and says it is ME."""
    key = ec.generate_private_key(ec.SECP256R1())
    mine = bind(YOU, HOME.verifier.authority_hash, key_hash(key.public_key()))
    forged = forge(ME.public + mine[32:], key=key)
    with pytest.raises(PeerUntrusted, match=f"claims to be {short(ME.node_id)}"):
        HOME.verify(forged)


def test_an_extension_cannot_be_moved_to_another_tls_key() -> None:
    copied = forge(extension_of(HOME.issue(ME).certificate))
    with pytest.raises(
        PeerUntrusted, match="did not sign its TLS key for this cluster"
    ):
        HOME.verify(copied)


def test_an_extension_of_another_cluster_is_refused() -> None:
    """ME is in both clusters; what it signed for one does not count in the other."""
    key = ec.generate_private_key(ec.SECP256R1())
    there = bind(ME, OTHER.verifier.authority_hash, key_hash(key.public_key()))
    with pytest.raises(PeerUntrusted, match="for this cluster"):
        HOME.verify(forge(there, key=key))
    here = bind(ME, HOME.verifier.authority_hash, key_hash(key.public_key()))
    assert HOME.verify(forge(here, key=key)) == ME.node_id, "the test forges well"


def test_a_certificate_of_another_cluster_is_refused() -> None:
    with pytest.raises(
        PeerUntrusted, match=r"not from this cluster \(other secret\?\)"
    ):
        HOME.verify(OTHER.issue(ME).certificate)


def test_an_authority_with_our_name_is_not_ours() -> None:
    stranger = ec.generate_private_key(ec.SECP256R1())
    false = Authority(stranger, HOME.certificate)
    with pytest.raises(PeerUntrusted, match="not from this cluster"):
        HOME.verify(false.issue(ME).certificate)


def test_the_authority_itself_is_no_node() -> None:
    with pytest.raises(PeerUntrusted, match="does not say which node it is"):
        HOME.verify(HOME.certificate)


@pytest.mark.parametrize("der", [None, b""])
def test_no_certificate_is_refused(der: bytes | None) -> None:
    with pytest.raises(PeerUntrusted, match="showed no certificate"):
        HOME.verify(der)


def test_a_certificate_without_identity_is_refused() -> None:
    with pytest.raises(PeerUntrusted, match="does not say which node it is"):
        HOME.verify(forge(None))


@pytest.mark.parametrize("length", [0, 1, 95, 97, 1000])
def test_an_identity_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(PeerUntrusted, match=f"identity of {length} bytes"):
        HOME.verify(forge(bytes(length)))


def weak_keys() -> list[bytes]:
    """The points of small order, with both signs, and second names of two of them."""
    prime = 2**255 - 19
    order_8 = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"
    y8 = int.from_bytes(bytes.fromhex(order_8), "little")
    ys = [0, 1, prime - 1, y8, prime - y8, prime, prime + 1]
    return [(y | sign << 255).to_bytes(32, "little") for y in ys for sign in (0, 1)]


@pytest.mark.parametrize("public", weak_keys())
def test_a_key_that_everybody_can_sign_for_is_refused(public: bytes) -> None:
    """With R a small point and S zero, one in eight such signatures is good."""
    for signature in (public + bytes(32), weak_keys()[2] + bytes(32)):
        with pytest.raises(PeerUntrusted, match="weak node key"):
            HOME.verify(forge(public + signature))
    assert len(public + signature) == EXTENSION_BYTES


def test_a_huge_certificate_is_not_parsed() -> None:
    with pytest.raises(PeerUntrusted, match="certificate of 5000 bytes"):
        HOME.verify(bytes(5000))


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=700))
def test_garbage_is_refused(der: bytes) -> None:
    with pytest.raises(PeerUntrusted):
        HOME.verify(der)


LEAF = HOME.issue(ME).certificate
SIGNED = x509.load_der_x509_certificate(LEAF).tbs_certificate_bytes


@settings(deadline=None)
@given(st.integers(0, len(SIGNED) * 8 - 1))
def test_a_flipped_bit_is_refused(bit: int) -> None:
    changed = bytearray(LEAF)
    changed[LEAF.index(SIGNED) + bit // 8] ^= 1 << bit % 8
    with pytest.raises(PeerUntrusted):
        HOME.verify(bytes(changed))
