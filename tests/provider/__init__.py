"""A payment provider that behaves like real ones: `Provider` in the test, `python -m tests.provider` the process.

Its books are a file that outlives it. They are the judge of what was paid, whatever anybody believes.
"""

from tests.provider.books import Entry, read
from tests.provider.process import Provider

__all__ = ["Entry", "Provider", "read"]
