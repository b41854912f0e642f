"""The coordinator process: gRPC service, state file, TLS."""
