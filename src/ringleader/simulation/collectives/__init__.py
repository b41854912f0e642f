"""Simulates collectives in virtual time, to predict how long they take."""
