"""Simulators: collectives in virtual time, membership, and LANs of namespaces."""
