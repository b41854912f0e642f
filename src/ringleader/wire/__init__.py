"""Bytes on the wire: pure encoders and decoders that own no socket."""
