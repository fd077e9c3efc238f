"""The mail of a statement: a summary, and the page itself as it was written to its place."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from babel import Locale
from sqlalchemy import Connection

from ticketflow_orch.formatting.columns import BALANCE_AMOUNTS
from ticketflow_orch.formatting.localization import amount, month_name, reader_locale
from ticketflow_orch.formatting.mail_addresses import MailAddress, mail_address
from ticketflow_orch.mail.message import Attachment, Letter, MailOptions, compose, one_line
from ticketflow_orch.mail.rendering import html, subject_and_text
from ticketflow_orch.mail.suppression import objection, suppressions
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.delivery.handlers import Prepared, Rendered, Suppressed
from ticketflow_orch.statements.drafts import Draft, drafts, page_of
from ticketflow_orch.statements.model import LeftOut, Statement, StatementsLeftOutError

_SENDER_NAME = "TicketFlow"
# For so long after it was made a statement that could not be mailed goes to the address that is given for it.
_LOOKED_AT_AGAIN = timedelta(days=60)

# Organization reference, currency and month, as in the event's payload.
_Key = tuple[str, str, str]


def prepare_statements(
    connection: Connection, messages: Sequence[Message], *, options: MailOptions
) -> dict[UUID, Prepared]:
    """For each message its mail with the statement attached, or why it is not to be sent; a few queries a month.

    A message with bytes stays as it is: what may have been sent does not change.

    Raises:
        StatementsLeftOutError: one of their statements does not add up, or cannot be made for another reason.
    """
    contacts = {
        row.external_ref: row
        for row in connection.exec_driver_sql(_CONTACTS, {"references": [_key(m)[0] for m in messages]})
    }
    prepared: dict[UUID, Prepared] = {}
    to_render: dict[_Key, Message] = {}
    addresses = {reference: mail_address(row.contact_email) for reference, row in contacts.items()}
    suppressed = suppressions(connection, [address.key for address in addresses.values() if address is not None])
    for message in messages:
        organization, address = contacts.get(_key(message)[0]), addresses.get(_key(message)[0])
        objected = None if address is None else objection(message.event_type, suppressed.get(address.key, ()))
        until = message.occurred_at + _LOOKED_AT_AGAIN
        if organization is None or not organization.contact_email:
            prepared[message.event_id] = Suppressed("The organization has no contact address.", until)
        elif address is None:
            prepared[message.event_id] = Suppressed("The contact address is not one that mail can be sent to.", until)
        elif objected is not None:
            prepared[message.event_id] = Suppressed(objected, until)
        elif message.rendered is not None:
            prepared[message.event_id] = Rendered(message.rendered)
        else:
            to_render[_key(message)] = message
    for key in sorted({month for _, _, month in to_render}):
        organizations = sorted({contacts[ref].id for ref, _, month in to_render if month == key})
        with drafts(connection, Month.parse(key), organizations) as drawn:
            for draft in drawn:
                wanted = to_render.pop((*_whose(draft), key), None)
                if wanted is not None:
                    prepared[wanted.event_id] = _rendered(wanted, draft, addresses[_key(wanted)[0]], options)
    for message in to_render.values():
        prepared[message.event_id] = Suppressed("There is no such statement.")
    return prepared


def _rendered(message: Message, draft: Draft | LeftOut, address: MailAddress | None, options: MailOptions) -> Prepared:
    made = page_of(draft, options.locale)
    if isinstance(made, LeftOut):
        raise StatementsLeftOutError(made.why)
    if address is None:
        return Suppressed("The contact address is not one that mail can be sent to.")
    return Rendered(_mail(message, made.statement, address, made.content, options))


def _whose(draft: Draft | LeftOut) -> tuple[str, str]:
    """Reference and currency of the organization that a statement is for."""
    if isinstance(draft, LeftOut):
        return draft.organization, draft.currency
    return draft.statement.party.external_ref, draft.statement.currency


def _mail(message: Message, statement: Statement, recipient: MailAddress, page: bytes, options: MailOptions) -> bytes:
    locale = reader_locale(statement.party.locale, options.locale)
    values = {
        "organization": one_line(statement.party.name),
        "month": month_name(statement.month, locale),
        "currency": statement.currency,
        "has_history": statement.settled_elsewhere != 0,
        **_amounts(statement, locale),
    }
    subject, plain = subject_and_text(locale.language, "statement", **values)
    letter = Letter(
        sender=options.sender,
        sender_name=_SENDER_NAME,
        recipient=recipient,
        subject=subject,
        text=plain,
        html=html(locale.language, "statement", **values),
        language=locale.language,
        attachments=[Attachment(f"statement-{statement.month}-{statement.currency}.html", "html", page)],
    )
    return compose(message.event_id, message.occurred_at, letter)


def _amounts(statement: Statement, locale: Locale) -> dict[str, str]:
    """The summary's amounts, set to one width so that the plain text lines up."""
    signs = {"settled_elsewhere": -1}
    written = {
        name: amount(signs.get(name, 1) * getattr(statement, name), statement.exponent, locale)
        for name in BALANCE_AMOUNTS
    }
    width = max(map(len, written.values()))
    return {name: text.rjust(width) for name, text in written.items()}


def _key(message: Message) -> _Key:
    return message.payload["organization"], message.payload["currency"], message.payload["month"]


_CONTACTS = """
    SELECT id, external_ref, contact_email FROM organization WHERE external_ref = ANY (%(references)s::text[])
"""
