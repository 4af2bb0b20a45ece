"""What a user would run instead: the same work, written as its own documentation writes it."""
