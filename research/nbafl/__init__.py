"""NbAFL's figures."""
