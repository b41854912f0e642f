"""Simulates clusters of membership machines on a virtual clock, with seeded faults."""
