"""Measurements of what the project promises about speed and memory, on a server of their own."""
