"""The engine for ranks that share memory: slots, signals and the relay."""
