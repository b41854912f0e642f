"""Connections between agents: dialing, accepting, membership, link probes."""
