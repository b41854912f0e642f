"""The gRPC coordinator: workers find each other where multicast does not work."""
