"""What a user starts: the Flower apps, the `murmur` command, engines, results."""

DISTRIBUTION = "murmur-fl"  # our name on a package index, and that of Flower's bundles


def version() -> str:
    """Of the Murmur that is installed, such as 0.1.0."""
    from importlib import metadata  # not before it is asked for: many commands never do

    return metadata.version(DISTRIBUTION)
