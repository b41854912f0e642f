"""Shared weights over HTTPS: a server that keeps them, workers that improve them."""
