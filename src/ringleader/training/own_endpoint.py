"""OwnEndpoint: where the groups of this process are reached, as long as it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

from ringleader.errors import ConfigError
from ringleader.groups.view_group import encode_endpoint
from ringleader.transport.dialer import MAX_ADDRESSES
from ringleader.transport.own_addresses import own_addresses
from ringleader.transport.shared_listener import ListenerLease


class OwnEndpoint:
    """The endpoint that is told with every view.

    A laptop changes its address when it changes its network, and stays a member.
    ``configured`` are the addresses of RINGLEADER_ADDRESS: those which are no addresses
    of an interface at the start are names, or belong to a router, and always stay.

    Raises ConfigError if no address is in the certificate.
    """

    def __init__(
        self,
        lease: ListenerLease,
        configured: Sequence[str],
        read_addresses: Callable[[], Sequence[str]] = own_addresses,
    ) -> None:
        self._lease = lease
        self._configured = configured
        self._read_addresses = read_addresses
        self._had = frozenset(read_addresses())
        self.read_linked: Callable[[], Collection[str]] = tuple
        """Returns our addresses at which the links of the run end now."""
        self._encoded = encode_endpoint(lease, self.hosts())

    def read(self) -> bytes:
        """Return the encoded endpoint with the addresses of this moment.

        The last one if the certificate is for none of them: the machine may be on its
        way from one network to another.
        """
        with contextlib.suppress(ConfigError):
            self._encoded = encode_endpoint(self._lease, self.hosts())
        return self._encoded

    def hosts(self) -> Sequence[str]:
        """Return the addresses of this moment, last those of an overlay.

        A member in another network, which joined later, reaches this one there only.
        """
        now = self._read_addresses()
        kept = [h for h in self._configured if h in now or h not in self._had]
        linked = sorted(self.read_linked())[: MAX_ADDRESSES // 2]
        found = (kept or now)[: MAX_ADDRESSES - len(linked)]
        return list(dict.fromkeys([*found, *linked]))
