"""Events, reservations and reminders: what the ticketing itself needs done by the clock."""
