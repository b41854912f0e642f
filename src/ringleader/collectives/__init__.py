"""Collective algorithms as data: schedules, checker, cost model and selection."""
