"""Simulators: collectives in virtual time, membership with faults, virtual LANs."""
