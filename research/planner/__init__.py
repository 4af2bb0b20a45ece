"""How well `murmur advise` foretells."""
