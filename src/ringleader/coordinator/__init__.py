"""The gRPC coordinator: workers find each other where multicast does not work."""

from ringleader.settings.coordinator import quiet_grpc

quiet_grpc()  # before gRPC is imported, which only this package does
