"""What happens on a condition."""
