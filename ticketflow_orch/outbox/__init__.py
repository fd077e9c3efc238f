"""The outbox: what the outside world is to be told, how it is doing, and what people decide about it."""
