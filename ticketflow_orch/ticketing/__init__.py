"""What the ticketing itself needs done by the clock: events close, reservations expire, buyers are reminded.

Here belong what becomes of an event or a reservation, the mails about an event, and erasing a buyer. Money belongs to
`settlement`, the run of a window to `jobs`, how a mail looks to `mail`. Import from the modules: each is a verb's own.
"""
