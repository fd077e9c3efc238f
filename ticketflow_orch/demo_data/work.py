"""What the demo leaves to do: months to settle, one of which fails, late money, a held payout, somebody parked.

Three organizations have stories of their own, whatever the others are drawn to be: an arena that sells one concert for
more than ever, a theatre whose box office reports late, and a club whose bank account is disputed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, Engine

from ticketflow_orch.demo_data.organizer import Row
from ticketflow_orch.formatting.csv_files import Writer
from ticketflow_orch.importing.format import MONEY_MOVEMENTS, ORGANIZATIONS, Batch, Kind
from ticketflow_orch.importing.import_lock import import_turn, vacuum
from ticketflow_orch.importing.loading import import_batches
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.payouts.parking import park
from ticketflow_orch.periods.state import touched_months

# How many months are left to be settled; before them, a few to compare with.
MONTHS_LEFT = 3
LEAST_MONTHS = 6
ARENA, THEATRE, CLUB = "demo-arena", "demo-theatre", "demo-club"
DISPUTE = "bank account is disputed"
# More than may be parked, so that a settlement gives up.
_MISREAD_ORGANIZATIONS = 110
LEAST_ORGANIZATIONS = _MISREAD_ORGANIZATIONS
# Three of them are more than a ledger entry can hold.
_MISREAD_AMOUNT = 2**62
_STORIES, _LATE, _MISREAD = "the demo's stories", "the demo's late sales", "the demo's misread file"
_CORRECTIONS = "corrections"


def last_finished(last: Month) -> Month:
    """The last month that the demo settles and closes, of a data set that ends with `last`."""
    for _ in range(MONTHS_LEFT):
        last = last.previous()
    return last


def has_stories(engine: Engine) -> bool:
    """Whether the demo of this database leaves work."""
    with engine.connect() as connection:
        return _is_imported(connection, _STORIES)


def is_begun(engine: Engine) -> bool:
    """Whether any month has been settled."""
    with engine.connect() as connection:
        return bool(touched_months(connection))


def tell_stories(engine: Engine, first: Month, last: Month) -> None:
    """Load the three organizations that work is left with, and what they sell from `first` to `last` month."""
    _load(engine, _STORIES, first, dict(_stories(first, last)))


def leave_work(engine: Engine, last: Month, by: str, home: Path) -> None:
    """Leave late sales, a parked organization and a month that fails, once; corrections of it go to `home`.

    `last` is the data set's last month, `by` the name of the person who parks. What was done before is left as it is.
    """
    with engine.connect() as connection:
        done = _is_imported(connection, _MISREAD)
        currencies = _currencies(connection)
        parked = connection.exec_driver_sql(_WAS_PARKED, {"organization": CLUB}).scalar_one()
    if done:
        return
    finished = last_finished(last)
    _load(engine, _LATE, finished, {MONEY_MOVEMENTS: list(_late_sales(finished))})
    if not parked:
        park(engine, CLUB, DISPUTE, by, last)
    misread = list(_misread(currencies, last))
    _write_corrections(home, misread)
    _load(engine, _MISREAD, last, {MONEY_MOVEMENTS: misread})


def corrections(home: Path) -> Path:
    """The folder whose import corrects the month that fails."""
    return home / _CORRECTIONS


def is_misread(engine: Engine) -> bool:
    """Whether the month that fails is still to be corrected."""
    with engine.connect() as connection:
        return _is_imported(connection, _MISREAD) and not connection.exec_driver_sql(_IS_CORRECTED).scalar_one()


def _load(engine: Engine, source: str, first: Month, rows: dict[Kind, list[Row]]) -> None:
    with import_turn(engine) as connection:
        if _is_imported(connection, source):
            return
        batches = (
            Batch(kind, source, [column.name for column in kind.columns], enumerate(found, 1))
            for kind, found in rows.items()
        )
        import_batches(connection, source, batches, first)
    vacuum(engine, [kind.table for kind in rows])


def _is_imported(connection: Connection, source: str) -> bool:
    return bool(connection.exec_driver_sql(_IMPORTED, {"source": source}).scalar_one())


def _currencies(connection: Connection) -> dict[str, str]:
    return {
        row.external_ref: row.currency for row in connection.exec_driver_sql(_DRAWN, {"most": _MISREAD_ORGANIZATIONS})
    }


def _stories(first: Month, last: Month) -> Iterator[tuple[Kind, list[Row]]]:
    organizers = (
        (ARENA, "Limmat Arena, Zürich", "Europe/Zurich", "CHF", 810, "de-CH", 12, 9_000),
        (THEATRE, "Lantern Theatre, Brooklyn", "America/New_York", "USD", 0, "en-US", 8, 12_000),
        (CLUB, "Velvet Jazz Cellar, Madrid", "Europe/Madrid", "EUR", 2100, "es-ES", 6, 6_000),
    )
    joined = f"{first.first_day}"
    yield (
        ORGANIZATIONS,
        [
            (ref, name, zone, currency, "1000", str(tax), joined, "", f"office@{ref}.example", locale, "")
            for ref, name, zone, currency, tax, locale, _, _ in organizers
        ],
    )
    sales: list[Row] = []
    for month in months_between(first, last):
        for ref, _, _, currency, tax, _, number, amount in organizers:
            for sale in range(1, number + 1):
                # Ten times the price, in the last month that the demo closes.
                price = amount * (10 if ref == ARENA and month == last_finished(last) else 1)
                at = f"{month}-{2 * sale:02d}T18:30:00Z"
                sales.append(_capture(f"{ref}-{month}-{sale:02d}", ref, currency, price, at, tax=tax))
    yield MONEY_MOVEMENTS, sales


def _late_sales(month: Month) -> Iterator[Row]:
    for number in (1, 2):
        yield _capture(f"{THEATRE}-late-{number}", THEATRE, "USD", 12_000, f"{month}-28T23:00:00Z")


def _misread(currencies: dict[str, str], month: Month) -> Iterator[Row]:
    for organization, currency in currencies.items():
        for number in range(1, 4):
            at = f"{month}-10T12:00:00Z"
            yield _capture(f"{organization}-misread-{number}", organization, currency, _MISREAD_AMOUNT, at)


def _write_corrections(home: Path, misread: list[Row]) -> None:
    """Voids of all `misread` movements, in the format that `ticketflow import` takes."""
    folder = corrections(home)
    folder.mkdir(parents=True, exist_ok=True)
    names = [column.name for column in MONEY_MOVEMENTS.columns]
    with (folder / "money_movements.csv").open("w", encoding="utf-8", newline="") as file:
        # What is imported is for no spreadsheet.
        lines = Writer(file, for_people=False)
        lines.writerow(names)
        for row in misread:
            wrong = dict(zip(names, row, strict=True))
            void = wrong | {
                "external_ref": f"{wrong['external_ref']}-void",
                "amount": f"-{wrong['amount']}",
                "reverses_ref": wrong["external_ref"],
                "is_void": "true",
                "reason": "Misread amount",
            }
            lines.writerow([void[name] for name in names])


def _capture(ref: str, organization: str, currency: str, amount: int, at: str, *, tax: int = 0) -> Row:
    return (ref, organization, "", "CAPTURE", currency, str(amount), "1000", str(tax), "", at, "", "")


_IMPORTED = "SELECT EXISTS (SELECT FROM data_import WHERE source = %(source)s::text)"

_DRAWN = """
    SELECT external_ref, currency FROM organization
    WHERE external_ref ~ '^demo-[0-9]+$' ORDER BY external_ref LIMIT %(most)s::bigint
"""

_WAS_PARKED = """
    SELECT EXISTS (
        SELECT FROM parked_organization JOIN organization ON organization.id = organization_id
        WHERE external_ref = %(organization)s::text AND reason IS NOT NULL)
"""

_IS_CORRECTED = "SELECT EXISTS (SELECT FROM money_movement WHERE external_ref = 'demo-00001-misread-1-void')"
