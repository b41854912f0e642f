"""The node: its agent process, the launchers that use it, and their protocol."""
