"""How the back office is doing: one snapshot, judged by health and shown as metrics; what is kept, and for how long."""
