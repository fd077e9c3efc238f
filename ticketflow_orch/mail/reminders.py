"""The mails to ticket holders: rendered from what is true now, or suppressed when there is nothing to say any more.

A reminder, the notice of what changed since, and that the event was cancelled. What keeps one of them back and may
pass (a date or an address that somebody corrects) is looked at again until the event's day is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.localization import date_and_time, reader_locale
from ticketflow_orch.formatting.mail_addresses import MailAddress, mail_address
from ticketflow_orch.mail.message import Letter, MailOptions, compose, one_line
from ticketflow_orch.mail.rendering import html, subject_and_text
from ticketflow_orch.mail.suppression import objection, suppressions
from ticketflow_orch.months import day_window
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.delivery.handlers import Prepared, Rendered, Suppressed
from ticketflow_orch.ticketing.reminders import Told, note_told

Reservation = Row[tuple[Any, ...]]

# The zones of the earth and a day: by then the event's own day is over everywhere.
_LOOKED_AT_AGAIN = timedelta(days=2)
_TEMPLATES: Mapping[str, str] = {
    "ReminderDue": "reminder",
    "ReminderChanged": "change",
    "EventCancelled": "cancellation",
}


def prepare_reminders(
    connection: Connection, messages: Sequence[Message], *, now: datetime, options: MailOptions
) -> dict[UUID, Prepared]:
    """For each message its mail, with the event as it stands now, or why it is not to be sent; three queries.

    `now` is the business time (aware). A message with bytes stays as it is: what may have been sent does not change.
    What a mail says of the event is noted with its reminder.
    """
    found = _reservations(connection, messages)
    addresses = {key: mail_address(reservation.buyer_email) for key, reservation in found.items()}
    suppressed = suppressions(connection, [address.key for address in addresses.values() if address is not None])
    prepared: dict[UUID, Prepared] = {}
    told: list[Told] = []
    for message in messages:
        key = _key(message)
        reservation, address = found.get(key), addresses.get(key)
        if reservation is None:
            prepared[message.event_id] = Suppressed("There is no such reservation any more.")
            continue
        objected = None if address is None else objection(message.event_type, suppressed.get(address.key, ()))
        why_not = _nothing_to_say(message, reservation, now) or _no_one_to_say_it_to(message, address, objected)
        if why_not is not None or address is None:
            prepared[message.event_id] = why_not or Suppressed("The buyer has no address.")
        elif message.rendered is not None:
            prepared[message.event_id] = Rendered(message.rendered)
        else:
            prepared[message.event_id] = Rendered(_mail(message, reservation, address, options))
            if reservation.event_date is not None:
                told.append(
                    Told(
                        reservation.ref,
                        reservation.kind,
                        reservation.event_date,
                        reservation.starts_at,
                        reservation.venue,
                    )
                )
    note_told(connection, told)
    return prepared


def _key(message: Message) -> tuple[str, str, date | None]:
    """Reservation, kind and date of the reminder that a message is about; one about a cancellation is about none."""
    payload = message.payload
    day = payload.get("event_date")
    return payload["ref"], payload.get("kind", ""), None if day is None else date.fromisoformat(day)


def _reservations(
    connection: Connection, messages: Sequence[Message]
) -> dict[tuple[str, str, date | None], Reservation]:
    keys = sorted({_key(message) for message in messages}, key=str)
    references, kinds, dates = zip(*keys, strict=True) if keys else ((), (), ())
    values = {"references": list(references), "kinds": list(kinds), "dates": list(dates)}
    return {(row.ref, row.kind, row.event_date): row for row in connection.exec_driver_sql(_RESERVATIONS, values)}


def _nothing_to_say(message: Message, reservation: Reservation, now: datetime) -> Suppressed | None:
    """Why a mail is not to be sent to anybody; None when it is."""
    if message.event_type == "EventCancelled":
        return _nothing_to_cancel(reservation, now)
    event_date = date.fromisoformat(message.payload["event_date"])
    until = _until(event_date)
    for what, state, wanted in (
        ("reservation", reservation.status, "CONFIRMED"),
        ("event", reservation.event_status, "OPEN"),
    ):
        if state != wanted:
            return Suppressed(f"The {what} is {state}.")
    # Before it is said to have begun: of two reasons the one that names the wrong day.
    if reservation.starts_at not in day_window(event_date, reservation.timezone):
        begins = reservation.starts_at.isoformat()
        return Suppressed(f"The event is not on {event_date} any more, but begins at {begins}.", until)
    if reservation.starts_at <= now:
        return Suppressed(f"The event began at {reservation.starts_at.isoformat()}.", until)
    return _overtaken(message, reservation)


def _overtaken(message: Message, reservation: Reservation) -> Suppressed | None:
    if message.event_type == "ReminderDue" and reservation.has_nearer:
        return Suppressed("A reminder nearer to the event takes its place.")
    number = message.payload.get("number", 0)
    if number < reservation.changes_told or (message.rendered is not None and _has_changed(reservation)):
        # What may have arrived would say again what is no longer so, perhaps after the notice of the change.
        return Suppressed("What changed after that is told instead.")
    return None


def _has_changed(reservation: Reservation) -> bool:
    told = (reservation.told_starts_at, reservation.told_venue or "")
    return told[0] is not None and told != (reservation.starts_at, reservation.venue or "")


def _nothing_to_cancel(reservation: Reservation, now: datetime) -> Suppressed | None:
    if reservation.event_status != "CANCELLED":
        return Suppressed(f"The event is {reservation.event_status}.")
    if reservation.starts_at <= now:
        return Suppressed(f"The event would have begun at {reservation.starts_at.isoformat()}.")
    return None


def _no_one_to_say_it_to(message: Message, address: MailAddress | None, objected: str | None) -> Suppressed | None:
    day = message.payload.get("event_date") or message.payload["starts_at"][:10]
    until = _until(date.fromisoformat(day))
    if address is None:
        return Suppressed("The buyer's address is not an address that mail can be sent to.", until)
    return None if objected is None else Suppressed(objected, until)


def _until(event_date: date) -> datetime:
    return datetime.combine(event_date, time(), UTC) + _LOOKED_AT_AGAIN


def _mail(message: Message, reservation: Reservation, address: MailAddress, options: MailOptions) -> bytes:
    locale = reader_locale(reservation.locale, options.locale)
    day, hour = date_and_time(reservation.starts_at, reservation.timezone, locale)
    reply_to = mail_address(reservation.contact_email)
    values = {
        "title": one_line(reservation.title),
        "day": day,
        "time": hour,
        "venue": one_line(reservation.venue or ""),
        "quantity": reservation.quantity,
        "reference": one_line(reservation.public_ref),
        "organization": one_line(reservation.name),
        "is_answered": reply_to is not None,
    }
    template = _TEMPLATES[message.event_type]
    subject, plain = subject_and_text(locale.language, template, **values)
    letter = Letter(
        sender=options.sender,
        sender_name=reservation.name,
        recipient=address,
        subject=subject,
        text=plain,
        html=html(locale.language, template, **values),
        language=locale.language,
        reply_to=reply_to,
        # Only what nobody needs can be declined.
        unsubscribe=options.unsubscribing(message.event_id) if message.event_type == "ReminderDue" else None,
    )
    return compose(message.event_id, message.occurred_at, letter)


_RESERVATIONS = sql(__file__, "reservations")
