"""Certificates of the cluster's nodes: issuing them, verifying them, TLS contexts."""
