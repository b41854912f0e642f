"""The rules of the coordinator, as a state machine without sockets and clocks."""
