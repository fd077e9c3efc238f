"""What a run of an asset said: why it failed, and how its checks went."""

from __future__ import annotations

import dagster as dg


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    failures = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    return failures[0].user_failure_data.description or "" if failures and failures[0].user_failure_data else ""


def checks_of(result: dg.ExecuteInProcessResult) -> dict[str, tuple[bool, str | None]]:
    return {check.check_name: (check.passed, check.description) for check in result.get_asset_check_evaluations()}
