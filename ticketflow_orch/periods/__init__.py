"""Months as the database has them: how far each is, its time zones and windows, and which clock says that it is over.

What a month comes to is `settlement`, what is owed at its end `closing`; the arithmetic of months is in `months`.
"""
