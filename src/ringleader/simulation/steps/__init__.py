"""Simulates the step protocol of training runs, with seeded faults and an oracle."""
