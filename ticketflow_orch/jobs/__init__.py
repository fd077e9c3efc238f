"""Scheduled work: claims, starts, windows that were missed or not completed, and rows that were left out."""
