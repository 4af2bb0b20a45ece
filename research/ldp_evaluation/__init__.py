"""Protected inference results."""
