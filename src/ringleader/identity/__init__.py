"""Who a node is, and what proves that it belongs to the cluster.

A node is an Ed25519 key, a cluster is a secret. Keys and secret live in a private
directory; from them come the certificates with which every link is opened.
"""
