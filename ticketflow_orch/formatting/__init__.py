"""Values as people read them, and the files that they are written to.

Plain values only: what a row or a month means is not known here.
"""
