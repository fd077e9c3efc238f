"""A window of reminders: what changed is mailed, what is due is queued, what nothing keeps back any more goes.

The steps themselves are in `event_changes`, in `reminders` and in the relay's `reconsidering`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.retrying import retried
from ticketflow_orch.jobs.batches import BadRow
from ticketflow_orch.outbox.delivery.handlers import EventKind
from ticketflow_orch.outbox.relay.reconsidering import may_go, reconsider
from ticketflow_orch.ticketing.event_changes import changes_are_due, tell_changes
from ticketflow_orch.ticketing.reminders import ReminderRules, reminders_are_due, send_reminders


@dataclass(frozen=True, slots=True)
class Reminding:
    """What a window did.

    `queued`, `skipped` and `missed` reminders; mails about what `changed` and about events that are `cancelled`;
    `taken_up`: mails that were suppressed for a reason that has passed.
    """

    queued: int
    skipped: int
    missed: int
    changed: int
    cancelled: int
    taken_up: int
    bad: tuple[BadRow, ...]


def remind(engine: Engine, rules: ReminderRules, kinds: Mapping[str, EventKind], *, cancellations: bool) -> Reminding:
    """Do all that is due at `rules.now`; `kinds` prepare mails, `cancellations`: whether mails go about those."""
    # What was decided about an event that has moved since is decided anew by the reminders that follow.
    changes = retried(engine, lambda: tell_changes(engine, rules, cancellations=cancellations))
    reminded = send_reminders(engine, rules)
    taken_up = retried(engine, lambda: reconsider(engine, kinds, rules.now))
    return Reminding(
        queued=reminded.queued,
        skipped=reminded.skipped,
        missed=reminded.missed,
        changed=changes.changed,
        cancelled=changes.cancelled,
        taken_up=taken_up,
        bad=(*changes.bad, *reminded.bad),
    )


def is_due(connection: Connection, rules: ReminderRules, kinds: Mapping[str, EventKind]) -> bool:
    """Whether `remind` would do anything."""
    return changes_are_due(connection) or reminders_are_due(connection, rules) or may_go(connection, kinds, rules.now)
