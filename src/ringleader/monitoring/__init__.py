"""What an agent collects for the dashboard and ``ringleader top``."""
