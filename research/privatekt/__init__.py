"""PrivateKT's figures."""
