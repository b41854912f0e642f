"""Discovery of other nodes: mDNS, lists of addresses, and pairing announcements."""
