"""What runs on this host: a Postgres of our own, processes, and which databases serve."""
