"""The tasks that come with Ringleader."""
