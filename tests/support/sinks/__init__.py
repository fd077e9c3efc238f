"""Real receivers on this machine, which misbehave on request."""
