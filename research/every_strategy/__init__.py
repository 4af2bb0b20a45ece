"""What every strategy reaches at one budget."""
