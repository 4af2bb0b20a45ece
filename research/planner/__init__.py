"""How well `murmur advise settings` foretells."""
