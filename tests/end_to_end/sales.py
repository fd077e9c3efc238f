"""What the end-to-end tests sell, and what it must come to: twenty organizations, one capture each a month."""

from __future__ import annotations

from sqlalchemy import Engine, text

from tests.support.rows import add_movement, add_organization, add_void
from ticketflow_orch.months import Month, months_between

FIRST_MONTH = "2024-01"
MONTHS = list(months_between(Month.parse(FIRST_MONTH), Month(2025, 6)))
# Business time: June 2025 is over in Madrid and goes on for some hours in Pago Pago.
NOW = "2025-07-01T05:00:00Z"
ORGANIZATIONS = 20


def sell(engine: Engine) -> None:
    """The organizations and all that they ever sell."""
    for rank in range(1, ORGANIZATIONS + 1):
        zone = "Pacific/Pago_Pago" if rank == ORGANIZATIONS else "Europe/Madrid"
        organization = add_organization(engine, external_ref=f"hall-{rank}", name=f"Hall {rank}", timezone=zone)
        for month in MONTHS:
            add_movement(engine, organization, 1000 * rank * month.number, f"{month}-15T20:00")


def flood(engine: Engine, month: str) -> None:
    """Sales of the smallest hall in `month` that are each possible, and together more than the ledger can hold."""
    for number in range(3):
        add_movement(engine, _smallest(engine), 2**62, f"{month}-20T20:00", external_ref=f"flood-{month}-{number}")


def drain(engine: Engine, month: str) -> None:
    """Void what `flood` sold."""
    with engine.connect() as connection:
        sold = connection.execute(
            text("SELECT id FROM money_movement WHERE external_ref LIKE :ref"), {"ref": f"flood-{month}-%"}
        ).scalars()
        ids = list(sold)
    for movement in ids:
        add_void(engine, movement)


def due(month: str) -> dict[str, int]:
    """The net of each organization, in cents: what it sold, less 10 % commission and 20 % tax on that."""
    number = Month.parse(month).number
    return {f"hall-{rank}": 880 * rank * number for rank in range(1, ORGANIZATIONS + 1)}


def posted(engine: Engine, month: str) -> dict[str, int]:
    """The net of each organization as the ledger has it; an entry too many would show in it."""
    with engine.connect() as connection:
        rows = connection.execute(
            text("""
                SELECT external_ref, CAST(sum(net) AS bigint) AS net
                FROM ledger_entry JOIN organization ON organization.id = organization_id
                WHERE month = :month GROUP BY external_ref
            """),
            {"month": Month.parse(month).first_day},
        )
        return {row.external_ref: row.net for row in rows}


def _smallest(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT id FROM organization WHERE external_ref = 'hall-1'")).scalar_one())
