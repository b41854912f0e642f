"""trust: keys, certificates, pairing: who is one of us, and how the other side knows.

Works before or after the plan of `net`: what net may already have moved is looked for by its definition.
Trust imports nothing of net after this move: the names of the TLS protocols (ALPN) and `can_seal` come here,
and the record cipher goes to net, whose records it seals.
"""

import re
from pathlib import Path

SRC = Path("src/ringleader")


def module_with(definition: str) -> str:
    """The module (today, wherever it has been moved) that holds a line that begins so."""
    for path in sorted(SRC.rglob("*.py")):
        if re.search(rf"^{definition}", path.read_text(), re.M):
            return ".".join(path.relative_to(SRC).with_suffix("").parts)
    raise SystemExit(f"plan_trust: nobody defines {definition}")


ALPN, CAN_SEAL = module_with("SEALED_ALPN = "), module_with(r"def can_seal\(")
NET_IS_MOVED = ALPN == "trust.tls_credentials"  # the plan of net, run first, makes that file

DOCS = {
    "trust": """Who is who: node keys, the cluster secret, certificates, and pairing by PIN.

A node is an Ed25519 key and a cluster is a secret. Both are stored in a private
directory; the certificates that open every link are derived from them.""",
    "net": "The way between ranks: links over TCP, TLS and shared memory.",  # if net is not moved yet
    "trust.home": """Home: the private directory of a user, ``~/.ringleader``.

With what its files need, and other private files: atomic writes and locks. ``--help``
imports this: no msgspec comes here.""",
    "trust.join_codes": """What a person types to join a cluster: a phrase of eight words, or a PIN.

``JoinPhrase`` carries 80 bits and detects typing errors; ``AttemptWindow`` limits how
long and how often a PIN may be tried. ``--help`` imports this: nothing slow comes here.""",
    "trust.joined_cluster": "The cluster this user has joined: its secret, nodes met, jobs permission.",
    "trust.certificates": "Certificates of a cluster's nodes: issued, verified, in TLS contexts.",
    "trust.tls_handshake": """What a connection needs for its TLS handshake, whoever issues the certificates.

The interface of the credentials, the names of the protocols, and errors explained.
Transports import it, also without encryption: nothing slow comes here.""",
    "trust.user_certificates": "The user's own certificates: reading PEM files, rotation, TLS contexts.",
    "trust.credentials": """NodeCredentials: what a process of a node proves itself by.

``Credentials`` are made from the secret of the cluster, ``UserCredentials`` from the
user's own certificates.""",
    "trust.server_key": "Key and certificate of a server for strangers: internet run, dashboard.",
    "trust.pin_exchange": "SPAKE2: two machines that know one PIN agree on a key, with one guess each.",
    "trust.pairing_protocol": """The pairing protocol: a PIN of six digits carries the cluster secret. Pure.""",
    "trust.pairing": "Pairing by PIN over TCP: one machine invites, the other joins.",
}

MOVES = {
    "trust.secret_value": ["identity.secret_value"],
    "trust.home": [
        "identity.storage.home",
        "identity.storage.private_file",
        "identity.storage.file_lock",
    ],
    "trust.checked_struct": ["identity.storage.checked_struct"],  # msgspec: not for `--help`, which loads home
    "trust.node_key": ["identity.node_key"],
    "trust.join_codes": ["identity.join_phrase", "identity.pairing.attempt_window", "identity.phrase_words"],
    "trust.joined_cluster": [
        "identity.cluster_secret",
        "identity.known_nodes",
        "identity.jobs_permission",
        "identity.cluster_store",
    ],
    "trust.certificates": [
        "identity.certificates.authority",
        "identity.certificates.cert_binding",
        "identity.certificates.tls_context",
        "virtual.can_seal",
        "identity.certificates.sni_auth",
    ],
    "trust.tls_handshake": [
        *(["trust.tls_credentials"] if NET_IS_MOVED else ["virtual.protocol_names"]),
        "identity.certificates.tls_errors",
    ],
    "trust.user_certificates": [
        "identity.certificates.pem",
        "identity.certificates.pem_files",
        "identity.certificates.rotation",
        "identity.certificates.user_context",
        "identity.certificates.tls_probe",
    ],
    "trust.credentials": ["identity.node_credentials", "identity.credentials", "identity.user_credentials"],
    "trust.server_key": ["identity.server_key", "identity.server_certificate"],
    "trust.pin_exchange": ["identity.pairing.spake2_exchange", "identity.pairing.pin_proof"],
    "trust.pairing_protocol": [
        "identity.pairing.protocol",
        "identity.pairing.messages",
        "identity.pairing.session_keys",
    ],
    "trust.pairing": ["identity.pairing.invitation", "identity.pairing.join_client"],
}
if CAN_SEAL == "identity.record_cipher":  # a file of its own: it is imported late, as cryptography takes long
    MOVES["net.record_cipher"] = ["identity.record_cipher"]

SPLITS = {"virtual.can_seal": (CAN_SEAL, ["can_seal"])}
if not NET_IS_MOVED:
    SPLITS["virtual.protocol_names"] = (ALPN, ["ALPN", "SEALED_ALPN"])

RENAMES = {
    "identity.storage.home.LOCK": "HOME_LOCK",
    "identity.storage.home._try_lock": "_try_lock_file",
    "identity.node_key.claim": "claim_node_key",
    "identity.node_key.first_key": "first_node_key",
    "identity.node_key.key_files": "node_key_files",
    "identity.node_key.public_key": "public_key_of",
    "identity.pairing.attempt_window.WINDOW_S": "PIN_WINDOW_S",
    "identity.known_nodes.remember": "remember_node",
    "identity.known_nodes._FILE_LIMIT_BYTES": "_KNOWN_NODES_LIMIT_BYTES",
    "identity.certificates.tls_context.server_context": "cluster_server_context",
    "identity.certificates.tls_context.client_context": "cluster_client_context",
    "identity.certificates.tls_context.offered": "offered_protocols",
    "identity.certificates.user_context.server_context": "user_server_context",
    "identity.certificates.user_context.client_context": "user_client_context",
    "identity.certificates.user_context.http_context": "web_server_context",
    "identity.certificates.user_context.check_self": "check_connection_with_self",
    "identity.certificates.user_context.names_of": "names_in_certificate",
    "identity.certificates.user_context.covers": "is_for_host",
    "identity.certificates.user_context.as_address": "host_as_address",
    "identity.certificates.pem_files.load": "load_user_pem",
    "identity.certificates.pem_files.load_server": "load_server_pem",
    "identity.certificates.tls_errors.name_of": "tls_error_name",
    "identity.certificates.tls_errors.is_plain": "is_answer_without_tls",
    "identity.certificates.tls_errors.explain": "explain_tls_error",
    "identity.certificates.tls_probe.why_refused": "why_tls_is_refused",
    "identity.server_key.load_or_make": "load_or_make_server_key",
    "identity.server_key.fingerprint_of": "server_key_fingerprint",
    "identity.server_key.FINGERPRINT_BYTES": "SERVER_FINGERPRINT_BYTES",
    "identity.server_key.SECRET_BYTES": "SERVER_SECRET_BYTES",
    "identity.pairing.invitation.MIN_ANSWER_S": "MIN_PIN_ANSWER_S",
    "identity.pairing.messages.decode": "decode_pairing_message",
    "identity.pairing.spake2_exchange.is_element": "is_spake2_element",
    "identity.record_cipher.new_secret": "new_record_secret",
    "identity.record_cipher.frees_gil": "sealing_frees_gil",
}

FACE = {
    **dict.fromkeys(("Secret", "Home", "HomeWriter", "FileLock", "HOME_LOCK", "try_lock", "read_private", "write_private",
                     "sync_directory", "with_checksum", "verify_checksum"), "files: later `files.py` at the top (house.md, step 3)"),
    **dict.fromkeys(("NodeKey", "ClaimedKey", "claim_node_key", "first_node_key", "node_key_files", "public_key_of"), "cluster, cli, doctor"),
    **dict.fromkeys(("ClusterSecret", "load_cluster_secret", "clean_name", "KnownNode", "load_known_nodes", "remember_node", "check_not_joined",
                     "store_cluster", "forget_cluster", "load_permission", "store_permission", "new_join_phrase", "parse_join_phrase"), "cli"),
    **dict.fromkeys(("NodeCredentials", "Credentials", "UserCredentials", "PemCredentials", "RotatingPem", "load_user_pem"), "cluster, group, elastic, net"),
    **dict.fromkeys(("TlsCredentials", "ALPN", "SEALED_ALPN", "can_seal", "explain_tls_error", "tls_error_name", "is_answer_without_tls",
                     "why_tls_is_refused", "speaks_tls"), "net, cluster"),
    **dict.fromkeys(("Invitation", "InvitationEvent", "InvitationOutcome", "AttemptWindow", "PairingHost", "PinShown", "PIN_WINDOW_S",
                     "join_at", "new_pin"), "cli invite, join"),
    **dict.fromkeys(("ServerKey", "ServerCertificate", "load_or_make_server_key", "server_key_fingerprint", "PinRequest", "answer_pin_request"),
                    "internet, dashboard"),
}
