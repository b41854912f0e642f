"""Messages and stubs of the coordinator, generated from ``proto/`` by ``make proto``."""
