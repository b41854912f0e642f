"""Private files of this user: atomic writes, locks, and ``~/.ringleader``."""
