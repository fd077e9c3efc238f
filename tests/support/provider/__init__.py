"""A payment provider that behaves like real ones: `Provider` in the test, `tests.support.provider` as a process.

Its books are a file that outlives it. They are the judge of what was paid, whatever anybody believes.
"""

from tests.support.provider.books import Entry, read
from tests.support.provider.process import Provider

__all__ = ["Entry", "Provider", "read"]
