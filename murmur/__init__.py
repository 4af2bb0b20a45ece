"""Murmur's rooms below the app and the algorithms: one question, its sum, its privacy, learning."""
