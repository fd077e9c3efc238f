"""The outbox: what the outside world is to learn, how that is going, and what people decide about it.

Events are written by `events`, which everybody uses, in the transaction of their cause; alerts are events too. How they
get out is in `relay` and `delivery`. What an event says, and what is done when it has arrived, is its own room's.
"""
