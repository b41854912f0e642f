"""Messages and bodies that server and workers exchange."""
