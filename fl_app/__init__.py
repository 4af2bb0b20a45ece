"""What a user starts: the Flower apps, the `murmur` command, engines, results."""
