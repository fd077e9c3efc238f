"""Mails: reminders to buyers and statements to organizations, rendered whole when they are first to be sent.

`message` makes the bytes, `rendering` fills the templates, `reminders` and `statements` say who gets what, and who
nothing any more.
"""
