"""DPFL-BNN's figures."""
