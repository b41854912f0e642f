"""The pairing protocol: a PIN of six digits carries the cluster secret to a new
machine.

Both sides are here, without I/O. J joins, H hosts and shows the PIN. Messages are
msgpack arrays of at most 512 bytes:

    M1  J->H  [1, nonce, key of J]     M2  H->J  [1, nonce, key of H]
    M3  J->H  [SPAKE2 element]         M4  H->J  [SPAKE2 element]
    M5  J->H  [MAC, sealed name and signature]
    M6  H->J  [MAC, sealed cluster, root, administrators, name and signature]
    M7  J->H  [sealed "ok"]

T0 hashes M1, M2 and the channel, and identifies both sides of SPAKE2. T1 hashes T0, M3
and M4, and everything later is keyed by it and signed over it. So a changed bit
anywhere, a relay that inserts its own key, or different channels on the two sides end
the run.

J proves first that it knows the PIN. Each run tests one PIN, whatever is sent, and the
caller spends an attempt between ``check_element`` and ``answer_element``: before
anything is sent that depends on the PIN.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from msgspec.msgpack import encode

from ringleader.errors import PeerUntrusted, ProtocolError
from ringleader.identity.cluster_secret import ClusterSecret, clean_name
from ringleader.identity.known_nodes import KnownNode
from ringleader.identity.node_key import NodeKey, node_id, public_key
from ringleader.identity.pairing.messages import (
    NONCE_BYTES,
    Element,
    Handover,
    Hello,
    Introduction,
    Sealed,
    Thanks,
    decode,
)
from ringleader.identity.pairing.session_keys import SessionKeys, opening
from ringleader.identity.pairing.spake2_exchange import Spake2Exchange, is_element
from ringleader.identity.secret_value import Secret

PIN_REFUSED = (
    "the PIN was refused, or another machine answered; "
    "use the new PIN on the other screen"
)


@dataclass(frozen=True, slots=True)
class PairingResult:
    """What the host handed over: the cluster, and the host's node."""

    cluster: ClusterSecret
    host: KnownNode


def _plain(content: object) -> Secret[bytes]:
    return Secret(encode(content))


class _Participant:
    """The state that both sides keep during a run."""

    def __init__(self, key: NodeKey, name: str, *, peer: str, channel: bytes) -> None:
        self._key = key
        self._name = clean_name(name)
        self._peer = peer
        self._channel = channel
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._hello = encode(Hello(1, nonce, key.public))
        self._opening = b""
        self._other = b""
        self._keys: SessionKeys | None = None

    def _meet(self, frame: bytes, m1: bytes, m2: bytes) -> None:
        """Take the hello of the other side and hash both."""
        self._other = decode(frame, Hello, self._peer).public
        self._opening = opening(m1, m2, self._channel)

    def _refuse_clone(self) -> None:
        if self._other == self._key.public:
            text = "cloned identity: it has the key of this machine"
            mend = "if a home directory was copied, run 'ringleader leave' on one"
            raise PeerUntrusted(self._peer, f"{text}; {mend}")

    def _agreed(self) -> SessionKeys:
        assert self._keys is not None, "the elements come first"
        return self._keys


class PairingJoiner(_Participant):
    """The machine that joins. Call the methods in order, each message once."""

    def __init__(
        self,
        key: NodeKey,
        name: str,
        pin: Secret[str],
        *,
        peer: str = "the other machine",
        channel: bytes = b"",
    ) -> None:
        super().__init__(key, name, peer=peer, channel=channel)
        self._pin = pin
        self._exchange: Spake2Exchange | None = None

    def hello(self) -> bytes:
        """Return M1."""
        return self._hello

    def answer_hello(self, m2: bytes) -> bytes:
        """Return M3, for M2."""
        self._meet(m2, self._hello, m2)
        self._refuse_clone()
        self._exchange = Spake2Exchange("J", self._pin, self._opening)
        return encode(Element(self._exchange.element))

    def answer_element(self, m4: bytes) -> bytes:
        """Return M5, for M4: the proof that we know the PIN, and our identity."""
        assert self._exchange is not None, "the hello comes first"
        element = decode(m4, Element, self._peer).element
        key = self._exchange.key(element)
        if key is None:
            raise ProtocolError(self._peer, "sent a bad element")
        m3 = encode(Element(self._exchange.element))
        keys = self._keys = SessionKeys.derive(key, self._opening, m3, m4)
        said = Introduction(self._name, self._key.sign(keys.statement("J")))
        return encode(Sealed(keys.proof("J"), keys.seal("J", 0, _plain(said))))

    def answer_welcome(self, m6: bytes) -> tuple[bytes, PairingResult]:
        """Return M7 and the cluster, for M6.

        Raises PeerUntrusted if the host did not know the PIN.
        """
        keys = self._agreed()
        sealed = decode(m6, Sealed, self._peer)
        if not keys.is_proof("H", sealed.proof):
            raise PeerUntrusted(self._peer, PIN_REFUSED)
        welcome = self._unpack(keys, sealed.box)
        if welcome is None:
            raise PeerUntrusted(self._peer, PIN_REFUSED)
        return encode(Thanks(keys.seal("J", 1, _plain("ok")))), welcome

    def _unpack(self, keys: SessionKeys, box: bytes) -> PairingResult | None:
        found = keys.unseal("H", 0, box, Handover)
        if found is None or not keys.has_signed("H", self._other, found.signature):
            return None
        secret = ClusterSecret(
            root=Secret(found.root),
            name=clean_name(found.cluster),
            epoch=found.epoch,
            admins=tuple(node_id(admin) for admin in found.admins),
        )
        return PairingResult(
            secret, KnownNode(node_id(self._other), clean_name(found.name))
        )


class PairingHost(_Participant):
    """The machine that shows the PIN. Call the methods in order, each message once."""

    def __init__(
        self,
        key: NodeKey,
        name: str,
        cluster: ClusterSecret,
        *,
        peer: str = "the other machine",
        channel: bytes = b"",
    ) -> None:
        super().__init__(key, name, peer=peer, channel=channel)
        self._cluster = cluster

    def answer_hello(self, m1: bytes) -> bytes:
        """Return M2, for M1; also to a clone of ours, whose user must learn the
        reason."""
        self._meet(m1, m1, self._hello)
        return self._hello

    def check_element(self, m3: bytes) -> None:
        """Refuse what cannot be the element of another machine; costs no attempt."""
        element = decode(m3, Element, self._peer).element
        if not is_element(element, "J"):
            raise ProtocolError(self._peer, "sent a bad element")
        self._refuse_clone()

    def answer_element(self, m3: bytes, pin: Secret[str]) -> bytes:
        """Return M4, for M3. The attempt must have been spent before."""
        element = decode(m3, Element, self._peer).element
        exchange = Spake2Exchange("H", pin, self._opening)
        key = exchange.key(element)
        if key is None:
            raise ProtocolError(self._peer, "sent a bad element")
        m4 = encode(Element(exchange.element))
        self._keys = SessionKeys.derive(key, self._opening, m3, m4)
        return m4

    def hear_proof(self, m5: bytes) -> KnownNode:
        """Return who joins, from M5; PeerUntrusted if it does not know the PIN."""
        keys = self._agreed()
        sealed = decode(m5, Sealed, self._peer)
        if not keys.is_proof("J", sealed.proof):
            raise PeerUntrusted(self._peer, "a wrong PIN was tried")
        said = keys.unseal("J", 0, sealed.box, Introduction)
        if said is None or not keys.has_signed("J", self._other, said.signature):
            raise PeerUntrusted(
                self._peer,
                "knows the PIN, but its signature is wrong",
            )
        return KnownNode(node_id(self._other), clean_name(said.name))

    def welcome(self) -> bytes:
        """Return M6, the secret. Record the member before it is sent."""
        keys, cluster = self._agreed(), self._cluster
        admins = [public_key(admin) for admin in cluster.admins]
        handover = Handover(
            cluster=cluster.name,
            epoch=cluster.epoch,
            root=cluster.root.reveal(),
            admins=[admin for admin in admins if admin is not None],
            name=self._name,
            signature=self._key.sign(keys.statement("H")),
        )
        return encode(Sealed(keys.proof("H"), keys.seal("H", 0, _plain(handover))))

    def hear_thanks(self, m7: bytes) -> bool:
        """Return whether M7 confirms that the other side has everything."""
        box = decode(m7, Thanks, self._peer).box
        return self._agreed().unseal("J", 1, box, str) == "ok"
