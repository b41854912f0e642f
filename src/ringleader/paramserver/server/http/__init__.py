"""The HTTP side of the server: limits, authentication, requests and answers."""
