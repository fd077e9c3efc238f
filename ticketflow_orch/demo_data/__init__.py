"""A made-up platform to try things on: some hundred organizers round the world, and what they sold in a year.

Rows are drawn per organization from a generator seeded with (seed, number of the organization) and go in as an import
does, judged by the same rules. Nothing depends on the clock: the same seed and last month make the same rows. What
settles, closes and pays them is no part of this room; the command `ticketflow demo` does it with the business itself.
"""

from ticketflow_orch.demo_data.load import DemoData, demo_batches, load_demo, require_no_others

__all__ = ["DemoData", "demo_batches", "load_demo", "require_no_others"]
