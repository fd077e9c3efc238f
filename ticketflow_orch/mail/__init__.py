"""Mails: reminders to buyers and statements to organizations, rendered whole when they are first to be sent.

`message` makes the bytes, `rendering` fills the templates, `reminders` and `statements` say who gets what, and who
nothing any more; `bounces` reads what comes back, `suppression` keeps the addresses that get none. How mails reach a
server is in `outbox.delivery.smtp`.
"""
