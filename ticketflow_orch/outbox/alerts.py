"""Alerts: sent once for each thing that is wrong, as events in the outbox, and resolved when it has passed.

What happens is an occurrence, remembered for ever under its key. Occurrences with one subject (a destination, a job)
are one alert for as long as it is open: the first is sent, the others are counted. What has passed is found out by
`monitoring.passed_alerts`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.outbox import events
from ticketflow_orch.outbox.events import OutboxEvent, Publish

# The aggregate type of all alerts.
ALERT = "alert"
RESOLVED = "AlertResolved"
CAUSE_GONE = "its cause is gone"
# What is open for so long is sent again.
REPEATED_AFTER = timedelta(days=1)


class Severity(StrEnum):
    """How soon somebody must look: at once, on the next working day, or some time."""

    PAGE = "PAGE"
    TICKET = "TICKET"
    INFO = "INFO"


# Of kinds that are not here: TICKET.
_SEVERITIES = {
    "DestinationFailing": Severity.PAGE,
    "DestinationGone": Severity.PAGE,
    "DuplicateFiring": Severity.INFO,
    "OutboxEventDead": Severity.PAGE,
    "PayoutContradicted": Severity.PAGE,
    "PayoutInDoubt": Severity.PAGE,
    "PayoutReferenceShared": Severity.PAGE,
    "StaleClaim": Severity.INFO,
    "WorkOverdue": Severity.PAGE,
}


@dataclass(frozen=True, slots=True)
class Alert:
    """Something of which operators are alerted once: `kind` is the event's type, `key` which occurrence of it this is.

    `subject`: what it is about, shared by all occurrences that are one alert; the key, where there is none.
    `event_id`: the event in the outbox that it is about. `severity`: where it is not that of its kind. `recurs`: it is
    alerted for as long as it lasts, so that what was over and is alerted under the same key has come back.
    """

    kind: str
    key: str
    payload: Mapping[str, Any]
    subject: str | None = None
    event_id: str | None = None
    severity: Severity | None = None
    recurs: bool = False

    @property
    def about(self) -> str:
        """What it shares with the other occurrences that are one alert."""
        return self.key if self.subject is None else self.subject

    @property
    def urgency(self) -> Severity:
        """How soon somebody must look."""
        return self.severity or _SEVERITIES.get(self.kind, Severity.TICKET)


@dataclass(frozen=True, slots=True)
class Standing:
    """An alert as people see it: since when, how often it occurred, and who or what ended it, if it is over."""

    id: int
    kind: str
    subject: str
    severity: Severity
    first_at: datetime
    last_at: datetime
    occurrences: int
    payload: Mapping[str, Any]
    resolved_at: datetime | None
    resolved_by: str | None


def alert_once(connection: Connection, alert: Alert, now: datetime, publish: Publish = events.append) -> bool:
    """Note `alert` unless that was done before; returns whether it was sent now.

    The first of its subject is sent, and then one a day for as long as there are more; the others are counted.
    """
    if alert.recurs and _is_over(connection, alert):
        alert = replace(alert, key=f"{alert.key} at {now.isoformat()}")
    values = {
        "kind": alert.kind,
        "key": alert.key,
        "subject": alert.about,
        "severity": alert.urgency,
        "payload": json.dumps(alert.payload),
        "event_id": alert.event_id,
        "again_after": REPEATED_AFTER,
    }
    noted = connection.exec_driver_sql(_NOTE, values).one_or_none()
    if noted is None or not noted.is_sent:
        return False
    more = {} if noted.occurrences == 1 else {"occurrences": noted.occurrences, "since": noted.first_at.isoformat()}
    # Each of them is its own event in one aggregate, so that it is resolved after it was sent.
    payload = {**alert.payload, "severity": alert.urgency.lower(), "subject": alert.about, **more}
    publish(
        connection,
        OutboxEvent(ALERT, _name(alert.kind, noted.key), alert.kind, payload, _name(alert.kind, alert.key), now),
    )
    return True


def alert_all(
    connection: Connection, alerts: Collection[Alert], now: datetime, publish: Publish = events.append
) -> Sequence[Alert]:
    """Those of `alerts` that were sent now; in an order in which no two sessions at once wait for each other."""
    in_order = sorted(alerts, key=lambda one: (one.kind, one.about, one.key))
    return [alert for alert in in_order if alert_once(connection, alert, now, publish)]


def standing(connection: Connection, kinds: Collection[str] | None = None) -> tuple[Standing, ...]:
    """The open alerts, of `kinds` or of all, the most urgent first and among them the oldest."""
    values = {"kinds": None if kinds is None else sorted(kinds)}
    return tuple(_standing(row) for row in connection.exec_driver_sql(_STANDING, values))


def latest(connection: Connection, most: int) -> tuple[Standing, ...]:
    """The last `most` alerts, open or over, the newest first."""
    return tuple(_standing(row) for row in connection.exec_driver_sql(_LATEST, {"most": most}))


def resolve(
    connection: Connection, alerts: Collection[int], now: datetime, by: str, publish: Publish = events.append
) -> tuple[Standing, ...]:
    """End those of `alerts` that are open, and send that each is; `by` says what ended them. Returns them."""
    ended = []
    for row in connection.exec_driver_sql(_RESOLVE, {"ids": sorted(alerts), "by": by}).all():
        one = _standing(row)
        payload = {
            "kind": one.kind, "subject": one.subject, "severity": one.severity.lower(),
            "since": one.first_at.isoformat(), "occurrences": one.occurrences, "resolved_by": by,
        }  # fmt: skip
        name = _name(one.kind, row.key)
        publish(connection, OutboxEvent(ALERT, name, RESOLVED, payload, f"{RESOLVED} {name}", now))
        ended.append(one)
    return tuple(ended)


def resolve_by_hand(connection: Connection, alert: int, now: datetime, who: str) -> Standing:
    """End one alert because a person says so.

    Raises:
        InvalidInput: it is not open.
    """
    ended = resolve(connection, [alert], now, who)
    if not ended:
        raise InvalidInput(f"No alert {alert} is open; `ticketflow alerts list` shows those that are.")
    return ended[0]


def resolve_others(
    connection: Connection, kind: str, subjects: Collection[str], now: datetime, publish: Publish = events.append
) -> tuple[Standing, ...]:
    """End the open alerts of `kind` but those about `subjects`: their cause is gone."""
    gone = [one.id for one in standing(connection, [kind]) if one.subject not in subjects]
    return resolve(connection, gone, now, CAUSE_GONE, publish)


def repeat_alerts(connection: Connection, now: datetime, publish: Publish = events.append) -> int:
    """Send again what has been open for another day, of what somebody must look at; how many there were."""
    rows = connection.exec_driver_sql(_REPEAT, {"again_after": REPEATED_AFTER}).all()
    for row in rows:
        name = _name(row.kind, row.key)
        payload = row.payload | {
            "severity": row.severity.lower(), "subject": row.subject, "occurrences": row.occurrences,
            "since": row.first_at.isoformat(),
        }  # fmt: skip
        publish(connection, OutboxEvent(ALERT, name, row.kind, payload, f"{name} at {row.told_at.isoformat()}", now))
    return len(rows)


def _standing(row: Row[Any]) -> Standing:
    return Standing(
        id=row.id,
        kind=row.kind,
        subject=row.subject,
        severity=Severity(row.severity),
        first_at=row.first_at,
        last_at=row.last_at,
        occurrences=row.occurrences,
        payload=row.payload,
        resolved_at=row.resolved_at,
        resolved_by=row.resolved_by,
    )


def _is_over(connection: Connection, alert: Alert) -> bool:
    values = {"kind": alert.kind, "key": alert.key, "subject": alert.about}
    return bool(connection.exec_driver_sql(_IS_OVER, values).scalar_one())


def _name(kind: str, key: str) -> str:
    return f"{kind} {key}"


_NOTE = sql(__file__, "note")
_IS_OVER = sql(__file__, "is_over")
_SHOWN = sql(__file__, "shown")
_STANDING = sql(__file__, "standing", shown=_SHOWN)
_LATEST = sql(__file__, "latest", shown=_SHOWN)
_RESOLVE = sql(__file__, "resolve", shown=_SHOWN)
_REPEAT = sql(__file__, "repeat")
