"""Node keys, the cluster secret, and the certificates that prove membership.

A node is an Ed25519 key and a cluster is a secret. Both are stored in a private
directory; the certificates that open every link are derived from them.
"""
