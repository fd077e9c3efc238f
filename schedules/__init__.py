"""What happens by the clock: one file per job, its job and schedule side by side."""

from schedules.settlement import monthly_settlement_job, settlement_schedule

__all__ = ["monthly_settlement_job", "settlement_schedule"]
