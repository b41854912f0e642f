"""Connections between agents: dialling, accepting, membership, link probes."""
