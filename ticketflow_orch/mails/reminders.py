"""The mail of a reminder: rendered from what is true now, or suppressed when there is nothing to remind of any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, text

from ticketflow_orch import clock
from ticketflow_orch.delivery import Message
from ticketflow_orch.delivery.preparing import Prepared, Rendered, Suppressed
from ticketflow_orch.localization import date_and_time, reader_locale
from ticketflow_orch.mails.message import Letter, MailOptions, compose, mail_address, one_line
from ticketflow_orch.mails.rendering import html, subject_and_text
from ticketflow_orch.months import day_window
from ticketflow_orch.settings import settings

Reservation = Row[tuple[Any, ...]]


def reminders_prepared(connection: Connection, messages: Sequence[Message]) -> Mapping[UUID, Prepared]:
    """The preparer of ReminderDue by the settings and the business clock."""
    now = clock.now(settings().fixed_clock)
    return prepare_reminders(connection, messages, now=now, options=MailOptions.configured(settings()))


def prepare_reminders(
    connection: Connection, messages: Sequence[Message], *, now: datetime, options: MailOptions
) -> dict[UUID, Prepared]:
    """For each message its mail, with the event as it stands now, or why it is not to be sent; one query.

    `now` is the business time (aware). A message that was rendered stays as it is: what may have been sent does not
    change.
    """
    references = [message.payload["ref"] for message in messages]
    found = {row.public_ref: row for row in connection.execute(_RESERVATIONS, {"references": references})}
    prepared: dict[UUID, Prepared] = {}
    for message in messages:
        reservation = found.get(message.payload["ref"])
        prepared[message.event_id] = (
            Suppressed("There is no such reservation any more.")
            if reservation is None
            else _prepared(message, reservation, now, options)
        )
    return prepared


def _prepared(message: Message, reservation: Reservation, now: datetime, options: MailOptions) -> Prepared:
    event_date = date.fromisoformat(message.payload["event_date"])
    why_not = _nothing_to_remind_of(reservation, event_date, now)
    if why_not is not None:
        return Suppressed(why_not)
    return Rendered(_mail(message, reservation, options) if message.rendered is None else message.rendered)


def _nothing_to_remind_of(reservation: Reservation, event_date: date, now: datetime) -> str | None:
    """Why the reminder for `event_date` is not to be sent; None when it is."""
    if reservation.status != "CONFIRMED":
        return f"The reservation is {reservation.status}."
    if reservation.event_status != "OPEN":
        return f"The event is {reservation.event_status}."
    if reservation.starts_at <= now:
        return f"The event began at {reservation.starts_at.isoformat()}."
    if reservation.starts_at not in day_window(event_date, reservation.timezone):
        return f"The event is not on {event_date} any more, but begins at {reservation.starts_at.isoformat()}."
    if mail_address(reservation.buyer_email) is None:
        return "The buyer's address is not an address that mail can be sent to."
    return None


def _mail(message: Message, reservation: Reservation, options: MailOptions) -> bytes:
    locale = reader_locale(reservation.locale, options.locale)
    day, time = date_and_time(reservation.starts_at, reservation.timezone, locale)
    values = {
        "title": one_line(reservation.title),
        "day": day,
        "time": time,
        "quantity": reservation.quantity,
        "reference": one_line(reservation.public_ref),
        "organization": one_line(reservation.name),
    }
    subject, plain = subject_and_text(locale.language, "reminder", **values)
    letter = Letter(
        sender=options.sender,
        sender_name=reservation.name,
        recipient=mail_address(reservation.buyer_email) or "",
        subject=subject,
        text=plain,
        html=html(locale.language, "reminder", **values),
        language=locale.language,
    )
    return compose(message.event_id, message.occurred_at, letter)


_RESERVATIONS = text("""
    SELECT public_ref, reservation.status, buyer_email, quantity, event.status AS event_status, starts_at,
        event.timezone, title, name, locale
    FROM reservation
    JOIN event ON event.id = event_id
    JOIN organization ON organization.id = event.organization_id
    WHERE public_ref = ANY (CAST(:references AS text[]))
""")
