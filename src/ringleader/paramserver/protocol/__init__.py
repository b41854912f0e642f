"""The messages and bodies that the parameter server and its workers exchange."""
