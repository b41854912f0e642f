"""Collectives as data: schedules, their proof, their price, and the choice among them."""
