"""Months as the database has them: their time zones, their windows, and the clocks that say when they are over."""
