"""What decides about money in an installation, how it is changed, and the delivery that its processes agree on.

The installation's row itself, which every process reads, is in `db.installation`: it knows nobody who is paid. Both
modules are imported by their names, since one loads what pays and the other what delivers.
"""
