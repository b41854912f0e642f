"""The life of a worker in a user's process: start, readiness, health, close."""
