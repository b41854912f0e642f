"""Both sides of pairing without a network: the run, and every way to disturb it."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import PeerError, PeerUntrusted, ProtocolError
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.known_nodes import KnownNode
from ringleader.identity.node_key import NodeKey
from ringleader.identity.pairing.messages import MAX_FRAME_BYTES
from ringleader.identity.pairing.protocol import (
    PairingHost,
    PairingJoiner,
    PairingResult,
)
from ringleader.identity.pairing.spake2_exchange import Spake2Exchange, is_element
from ringleader.identity.secret_value import Secret

PIN = Secret("482913")
WRONG = Secret("482914")
H, J = NodeKey.ephemeral(), NodeKey.ephemeral()
CLUSTER = ClusterSecret(root=Secret(secrets.token_bytes(32)), name="home", epoch=3)
CLUSTER = CLUSTER.administered_by(H.node_id)
PRIME = 2**255 - 19

Tamper = Callable[[bytes], bytes]


@dataclass
class Run:
    """A whole run with an attacker on the wire."""

    joiner_pin: str = "482913"
    host_pin: str = "482913"
    joiner_channel: bytes = b""
    host_channel: bytes = b""
    tamper: dict[int, Tamper] = field(default_factory=dict)
    frames: dict[int, bytes] = field(default_factory=dict)
    member: KnownNode | None = None
    """Nodes that the host admitted."""
    welcome: PairingResult | None = None
    """What the joiner got."""
    has_thanked: bool = False

    def go(self) -> Run:
        joiner = PairingJoiner(
            J, "laptop", Secret(self.joiner_pin), channel=self.joiner_channel
        )
        host = PairingHost(H, "desk", CLUSTER, channel=self.host_channel)
        m2 = host.answer_hello(self.wire(1, joiner.hello()))
        m3 = self.wire(3, joiner.answer_hello(self.wire(2, m2)))
        host.check_element(m3)
        m4 = self.wire(4, host.answer_element(m3, Secret(self.host_pin)))
        m5 = self.wire(5, joiner.answer_element(m4))
        self.member = host.hear_proof(m5)
        m7, self.welcome = joiner.answer_welcome(self.wire(6, host.welcome()))
        self.has_thanked = host.hear_thanks(self.wire(7, m7))
        return self

    def wire(self, number: int, frame: bytes) -> bytes:
        self.frames[number] = frame
        return self.tamper[number](frame) if number in self.tamper else frame


def flip(bit: int) -> Tamper:
    def tamper(frame: bytes) -> bytes:
        changed = bytearray(frame)
        at = bit % (len(frame) * 8)
        changed[at // 8] ^= 1 << at % 8
        return bytes(changed)

    return tamper


# -- the run -----------------------------------------------------------------------


def test_a_pin_carries_the_secret() -> None:
    run = Run().go()
    assert run.member == KnownNode(J.node_id, "laptop")
    assert run.welcome == PairingResult(CLUSTER, KnownNode(H.node_id, "desk"))
    assert run.has_thanked


def test_frames_are_small_even_with_the_longest_names() -> None:
    admins = tuple(NodeKey.ephemeral().node_id for _ in range(4))
    cluster = ClusterSecret(
        root=Secret(bytes(32)), name="c" * 48, epoch=1 << 32, admins=admins
    )
    joiner, host = PairingJoiner(J, "j" * 90, PIN), PairingHost(H, "h" * 90, cluster)
    m3 = joiner.answer_hello(host.answer_hello(joiner.hello()))
    m5 = joiner.answer_element(host.answer_element(m3, PIN))
    assert host.hear_proof(m5).name == "j" * 48
    m6 = host.welcome()
    _, welcome = joiner.answer_welcome(m6)
    assert welcome.cluster == cluster
    assert max(len(m5), len(m6)) <= MAX_FRAME_BYTES


def test_nothing_on_the_wire_tells_the_secret_or_a_name() -> None:
    wire = b"".join(Run().go().frames.values())
    for hidden in (CLUSTER.root.reveal(), b"home", b"desk", b"laptop", b"482913"):
        assert hidden not in wire


def test_names_from_the_other_side_are_made_fit_for_a_screen() -> None:
    joiner, host = PairingJoiner(J, "x", PIN), PairingHost(H, "y", CLUSTER)
    joiner._name = "\x1b[2J\x07evil"
    m3 = joiner.answer_hello(host.answer_hello(joiner.hello()))
    m5 = joiner.answer_element(host.answer_element(m3, PIN))
    assert host.hear_proof(m5).name == "[2J evil"


def test_a_wrong_pin_is_noticed_by_the_host_first() -> None:
    run = Run(joiner_pin="482914")
    with pytest.raises(PeerUntrusted, match="a wrong PIN was tried"):
        run.go()
    assert run.member is None
    assert 6 not in run.frames, "nothing of the secret has left"


def test_a_false_host_learns_nothing_and_gives_nothing() -> None:
    """A host that does not check the proof and sends arbitrary frames."""
    joiner, host = PairingJoiner(J, "x", PIN), PairingHost(H, "y", CLUSTER)
    m3 = joiner.answer_hello(host.answer_hello(joiner.hello()))
    m5 = joiner.answer_element(host.answer_element(m3, WRONG))
    with pytest.raises(PeerUntrusted, match="wrong PIN"):
        host.hear_proof(m5)
    with pytest.raises(PeerUntrusted, match="PIN was refused, or another machine"):
        joiner.answer_welcome(host.welcome())


def test_different_channels_on_the_two_sides_are_noticed() -> None:
    assert Run(joiner_channel=b"tls", host_channel=b"tls").go().has_thanked
    with pytest.raises(PeerUntrusted):
        Run(joiner_channel=b"tls", host_channel=b"middle box").go()


# -- an attacker on the wire-------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
@settings(deadline=None, max_examples=12)
@given(bit=st.integers(0, 10_000))
def test_a_flipped_bit_ends_the_run(number: int, bit: int) -> None:
    run = Run(tamper={number: flip(bit)})
    with pytest.raises(PeerError):
        run.go()
    assert run.welcome is None
    if number < 6:
        assert run.member is None, "when M6 is damaged the secret has left already"


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_same_content_in_other_bytes_is_noticed(number: int) -> None:
    """Both sides hash what they sent and heard, not what it means."""

    def lengthen(frame: bytes) -> bytes:
        at = frame.index(b"\xc4")  # bytes with a length of one byte; now of two
        return frame[:at] + b"\xc5\0" + frame[at + 1 :]

    run = Run(tamper={number: lengthen})
    with pytest.raises(PeerUntrusted):
        run.go()
    assert run.member is None


def test_a_damaged_farewell_is_only_not_a_farewell() -> None:
    box = bytes(range(20))
    run = Run(tamper={7: lambda _: msgspec.msgpack.encode([box])}).go()
    assert run.welcome is not None
    assert not run.has_thanked


@pytest.mark.parametrize("number", [1, 2])
def test_another_node_key_on_the_way_is_noticed(number: int) -> None:
    """A relay that puts in its own key would be the node that joins."""
    relay = NodeKey.ephemeral().public

    def replace(frame: bytes) -> bytes:
        version, nonce, _ = msgspec.msgpack.decode(frame)
        return msgspec.msgpack.encode([version, nonce, relay])

    run = Run(tamper={number: replace})
    with pytest.raises(PeerUntrusted):
        run.go()
    assert run.member is None


def test_whoever_knows_the_pin_still_needs_the_key_it_showed() -> None:
    thief = NodeKey.ephemeral()
    thief.public = J.public
    joiner, host = PairingJoiner(thief, "x", PIN), PairingHost(H, "y", CLUSTER)
    m3 = joiner.answer_hello(host.answer_hello(joiner.hello()))
    m5 = joiner.answer_element(host.answer_element(m3, PIN))
    with pytest.raises(PeerUntrusted, match="its signature is wrong"):
        host.hear_proof(m5)


class WeakKey(NodeKey):
    """A point of order four, for which one in four signatures of zeros is good."""

    def sign(self, message: bytes) -> bytes:
        return bytes(64)


def test_a_key_that_proves_nothing_does_not_join() -> None:
    """Its owner knows the PIN, and anybody could be it later."""
    weak = WeakKey.ephemeral()
    weak.public = bytes(32)
    for _ in range(12):
        joiner, host = PairingJoiner(weak, "x", PIN), PairingHost(H, "y", CLUSTER)
        m3 = joiner.answer_hello(host.answer_hello(joiner.hello()))
        m5 = joiner.answer_element(host.answer_element(m3, PIN))
        with pytest.raises(PeerUntrusted, match="signature is wrong"):
            host.hear_proof(m5)


def test_a_host_that_knows_the_pin_still_needs_its_key() -> None:
    thief = NodeKey.ephemeral()
    thief.public = H.public
    joiner, host = PairingJoiner(J, "x", PIN), PairingHost(thief, "y", CLUSTER)
    m3 = joiner.answer_hello(host.answer_hello(joiner.hello()))
    host.hear_proof(joiner.answer_element(host.answer_element(m3, PIN)))
    with pytest.raises(PeerUntrusted, match="another machine answered"):
        joiner.answer_welcome(host.welcome())


def test_a_proof_is_worth_nothing_in_another_run() -> None:
    old = Run().go().frames
    for number in (3, 4, 5, 6):

        def replay(_: bytes, number: int = number) -> bytes:
            return old[number]

        run = Run(tamper={number: replay})
        with pytest.raises(PeerError):
            run.go()
        assert run.welcome is None


def test_a_proof_cannot_be_reflected() -> None:
    joiner, host = PairingJoiner(J, "x", PIN), PairingHost(H, "y", CLUSTER)
    m3 = joiner.answer_hello(host.answer_hello(joiner.hello()))
    m5 = joiner.answer_element(host.answer_element(m3, PIN))
    with pytest.raises(PeerUntrusted):
        joiner.answer_welcome(m5)


def test_ones_own_element_is_refused() -> None:
    joiner, host = PairingJoiner(J, "x", PIN), PairingHost(H, "y", CLUSTER)
    m3 = joiner.answer_hello(host.answer_hello(joiner.hello()))
    with pytest.raises(ProtocolError, match="bad element"):
        joiner.answer_element(m3)
    (element,) = msgspec.msgpack.decode(m3)
    with pytest.raises(ProtocolError, match="bad element"):
        joiner.answer_element(msgspec.msgpack.encode([b"B" + element[1:]]))


def test_a_clone_is_told_so() -> None:
    joiner, host = PairingJoiner(H, "x", PIN), PairingHost(H, "y", CLUSTER)
    m2 = host.answer_hello(joiner.hello())
    with pytest.raises(PeerUntrusted, match="cloned identity"):
        joiner.answer_hello(m2)
    honest = PairingJoiner(J, "x", PIN)
    m3 = honest.answer_hello(m2)
    with pytest.raises(PeerUntrusted, match="cloned identity"):
        host.check_element(m3)


# -- hostile frames ----------------------------------------------------------------


def encode(*fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


HELLOS = {
    "nothing": b"",
    "not msgpack": b"\xc1" * 50,
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "a number": encode(1)[1:],
    "no fields": encode(),
    "too few": encode(1, bytes(16)),
    "too many": encode(1, bytes(16), J.public, 0),
    "version 0": encode(0, bytes(16), J.public),
    "version 2": encode(2, bytes(16), J.public),
    "version as text": encode("1", bytes(16), J.public),
    "version true": encode(True, bytes(16), J.public),
    "short nonce": encode(1, bytes(15), J.public),
    "long nonce": encode(1, bytes(17), J.public),
    "nonce as text": encode(1, "n" * 16, J.public),
    "short key": encode(1, bytes(16), bytes(31)),
    "long key": encode(1, bytes(16), bytes(33)),
    "no key": encode(1, bytes(16), None),
    "a map": msgspec.msgpack.encode({"version": 1}),
    "nested": b"\x91" * 510,
    "deep maps": b"\x81\xa1a" * 170,
    "something behind it": encode(1, bytes(16), J.public) + b"\0",
    "huge array": b"\xdd\xff\xff\xff\xff",
    "huge bytes": b"\x93\x01\xc6\xff\xff\xff\xff",
    "not UTF-8": b"\x93\x01\xa2\xff\xff\xa1x",
}


@pytest.mark.parametrize("kind", HELLOS)
def test_a_hostile_hello_is_refused(kind: str) -> None:
    with pytest.raises(ProtocolError, match="invalid pairing message"):
        PairingHost(H, "y", CLUSTER).answer_hello(HELLOS[kind])
    with pytest.raises(ProtocolError, match="invalid pairing message"):
        PairingJoiner(J, "x", PIN).answer_hello(HELLOS[kind])


def point(y: int, *, sign: int = 0, side: bytes = b"A") -> bytes:
    return side + (y | sign << 255).to_bytes(32, "little")


GOOD = Spake2Exchange("J", PIN, b"").element
ELEMENTS = {
    "empty": b"",
    "no point": b"A",
    "short": GOOD[:-1],
    "long": GOOD + b"\0",
    "other side": b"B" + GOOD[1:],
    "no side": b"S" + GOOD[1:],
    "y = 0": point(0),
    "neutral": point(1),
    "neutral, signed": point(1, sign=1),
    "neutral, beyond": point(PRIME + 1),
    "neutral, beyond, signed": point(PRIME + 1, sign=1),
    "order 2": point(PRIME - 1),
    "order 2, signed": point(PRIME - 1, sign=1),
    "y = q": point(PRIME),
    "largest": point(2**255 - 1),
}


@pytest.mark.parametrize("kind", ELEMENTS)
def test_a_bad_element_costs_no_attempt(kind: str) -> None:
    host = PairingHost(H, "y", CLUSTER)
    host.answer_hello(PairingJoiner(J, "x", PIN).hello())
    with pytest.raises(ProtocolError):
        host.check_element(encode(ELEMENTS[kind]))
    joiner = PairingJoiner(J, "x", PIN)
    joiner.answer_hello(PairingHost(H, "y", CLUSTER).answer_hello(joiner.hello()))
    swapped = ELEMENTS[kind].replace(b"A", b"B", 1)
    if kind != "other side":
        with pytest.raises(ProtocolError):
            joiner.answer_element(encode(swapped))


ORDER_8 = bytes.fromhex(
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"
)


@pytest.mark.parametrize(
    "element", [point(2), point(7), point(3, sign=1), b"A" + ORDER_8]
)
def test_a_point_off_the_curve_or_of_small_order_is_refused(element: bytes) -> None:
    """These look well and cost an attempt; the arithmetic refuses them."""
    host = PairingHost(H, "y", CLUSTER)
    host.answer_hello(PairingJoiner(J, "x", PIN).hello())
    with pytest.raises(ProtocolError, match="bad element"):
        host.answer_element(encode(element), PIN)


def test_real_elements_pass() -> None:
    for _ in range(5):
        assert is_element(Spake2Exchange("J", PIN, b"x").element, "J")
        assert is_element(Spake2Exchange("H", PIN, b"x").element, "H")


SEALED = {
    "nothing": b"",
    "no box": encode(bytes(32)),
    "empty box": encode(bytes(32), b""),
    "short proof": encode(bytes(31), bytes(40)),
    "three": encode(bytes(32), bytes(40), b""),
    "text": encode("p" * 32, bytes(40)),
}


@pytest.mark.parametrize("kind", SEALED)
def test_a_hostile_proof_is_refused(kind: str) -> None:
    joiner, host = PairingJoiner(J, "x", PIN), PairingHost(H, "y", CLUSTER)
    m3 = joiner.answer_hello(host.answer_hello(joiner.hello()))
    joiner.answer_element(host.answer_element(m3, PIN))
    with pytest.raises(ProtocolError):
        host.hear_proof(SEALED[kind])
    with pytest.raises(ProtocolError):
        joiner.answer_welcome(SEALED[kind])


@settings(deadline=None)
@given(st.binary(max_size=MAX_FRAME_BYTES))
def test_garbage_is_always_our_error(frame: bytes) -> None:
    host = PairingHost(H, "y", CLUSTER)
    with pytest.raises(ProtocolError):
        host.answer_hello(frame)
    with pytest.raises(ProtocolError):
        host.check_element(frame)


# -- what errors show --------------------------------------------------------------


@pytest.mark.parametrize("number", [3, 4, 5, 6])
def test_no_error_shows_pin_key_or_secret(number: int) -> None:
    run = Run(tamper={number: lambda frame: frame[:-1] + bytes([frame[-1] ^ 1])})
    with pytest.raises(PeerError) as caught:
        run.go()
    trace = traceback.TracebackException.from_exception(
        caught.value, capture_locals=True
    )
    ours = [frame for frame in trace.stack if "ringleader/identity" in frame.filename]
    shown = "".join(str(frame.locals) for frame in ours)
    assert "object at" in shown, "the locals are there"
    assert "482913" not in shown
    assert repr(CLUSTER.root.reveal())[2:-1] not in shown
