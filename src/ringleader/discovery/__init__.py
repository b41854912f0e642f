"""How nodes hear of each other: mDNS, lists of addresses, and the pairing window."""
