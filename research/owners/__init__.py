"""What owners without a public pool can learn together: the figures of the README here."""
