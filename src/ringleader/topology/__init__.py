"""Profiles of nodes and links, and the ring order computed from them."""
