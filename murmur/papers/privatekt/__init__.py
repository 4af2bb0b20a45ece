"""PrivateKT: what both halves agree on about the answers that clients give."""
