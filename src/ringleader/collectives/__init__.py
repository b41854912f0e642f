"""Collectives as data: schedules, their proof, their price, the choice among them."""
