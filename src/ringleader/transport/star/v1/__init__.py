"""Messages and stubs of the star, generated from ``proto/`` by ``make proto``."""
