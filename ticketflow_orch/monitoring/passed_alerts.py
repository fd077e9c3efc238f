"""What has passed of that which was alerted: the cause of each open alert is looked for, and without it the alert ends.

One query a kind. Alerts of other kinds are ended elsewhere: by the sensor that looks for overdue work, by the one that
sees the runs, or by a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import Connection

from ticketflow_orch.outbox import events
from ticketflow_orch.outbox.alerts import CAUSE_GONE, Standing, resolve
from ticketflow_orch.outbox.events import Publish

# What nobody need look at fades: this long after the last of it. A day's window comes within it, also in autumn.
FADING = timedelta(hours=26)


def resolve_passed(connection: Connection, now: datetime, publish: Publish = events.append) -> tuple[Standing, ...]:
    """End each open alert whose cause is gone, and report that; returns them."""
    kinds = set(connection.exec_driver_sql(_OPEN_KINDS).scalars())
    passed: set[int] = set()
    for kind in sorted(kinds & _CAUSES.keys()):
        statement = f"{_OPEN} AND NOT EXISTS ({_CAUSES[kind]})"
        passed.update(connection.exec_driver_sql(statement, {"kind": kind}).scalars())
    ended = resolve(connection, passed, now, CAUSE_GONE, publish)
    faded = set(connection.exec_driver_sql(_FADED, {"fading": FADING, "judged": sorted(_CAUSES)}).scalars())
    return (*ended, *resolve(connection, faded, now, "it did not occur again", publish))


_OPEN_KINDS = "SELECT DISTINCT kind FROM alert_group WHERE resolved_at IS NULL"

_OPEN = "SELECT id FROM alert_group AS one WHERE kind = %(kind)s::text AND resolved_at IS NULL"

_FADED = """
    SELECT id FROM alert_group
    WHERE resolved_at IS NULL AND severity = 'INFO' AND kind <> ALL (%(judged)s::text[])
        AND last_at < clock_timestamp() - %(fading)s::interval
"""


def _in_state(state: str) -> str:
    """Whether any of the events that the alert is about is still in `state`."""
    return f"""
        SELECT FROM alert JOIN outbox_event AS event USING (event_id)
        WHERE alert.group_id = one.id AND event.state = '{state}'
    """


# Whether nobody has completed a window of the job since.
_NOT_COMPLETED_SINCE = """
    SELECT WHERE NOT EXISTS (
        SELECT FROM job_execution
        WHERE job = one.subject AND state = 'COMPLETED' AND finished_at > one.last_at)
"""

# By kind: a query that finds something for as long as the cause of the alert `one` is there.
_CAUSES: Mapping[str, str] = {
    "DestinationFailing": "SELECT FROM delivery_destination WHERE failing_since IS NOT NULL AND name = one.subject",
    "DestinationGone": "SELECT FROM delivery_stop WHERE delivery_stop.kind = 'DESTINATION' AND name = one.subject",
    "OutboxEventDead": _in_state("DEAD"),
    "OutboxEventHeld": _in_state("HELD"),
    "OutboxEventInDoubt": _in_state("IN_DOUBT"),
    "PayoutInDoubt": "SELECT FROM payout WHERE state = 'IN_DOUBT'",
    "PayoutReferenceShared": """
        SELECT FROM payout WHERE state = 'CONFIRMED' AND provider_ref = one.subject HAVING count(*) > 1
    """,
    "PayoutsHeldForReview": """
        SELECT FROM payout WHERE state = 'HELD' AND to_char(month, 'YYYY-MM') = split_part(one.subject, ' ', 1)
    """,
    "RowLeftOut": "SELECT FROM bad_row WHERE job = one.subject",
    "StaleClaim": _NOT_COMPLETED_SINCE,
    "WindowMissed": """
        SELECT WHERE NOT EXISTS (SELECT FROM job_firing WHERE job = one.subject AND fired_at > one.last_at)
    """,
}
