"""Chunks of a tensor in fewer bytes: pure functions on numpy arrays of float32."""

from ringleader.codec.codec import BLOCK, NAMES, Codec, make, wire_name

__all__ = ["BLOCK", "NAMES", "Codec", "make", "wire_name"]
