"""Links that pass through rank 0, over one gRPC channel per worker."""
