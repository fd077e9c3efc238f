"""What each staged row refers to, in the folder or in the database, found once for all questions that follow."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

from ticketflow_orch.db.sql_files import Statement, sql
from ticketflow_orch.importing.format import (
    EVENTS,
    KINDS,
    MONEY_MOVEMENTS,
    OPENING_BALANCES,
    ORGANIZATIONS,
    RESERVATIONS,
    Kind,
)
from ticketflow_orch.importing.staging import Staging
from ticketflow_orch.months import Month, known_zones

# The table takes no movement from before.
_EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)

_LINKED = {
    ORGANIZATIONS: sql(__file__, "linked_organizations"),
    EVENTS: sql(__file__, "linked_events"),
    RESERVATIONS: sql(__file__, "linked_reservations"),
    MONEY_MOVEMENTS: sql(__file__, "linked_money_movements"),
    OPENING_BALANCES: sql(__file__, "linked_opening_balances"),
}

_FIRST_INSTANTS = sql(__file__, "first_instants")


def link(staging: Staging, first_month: Month) -> None:
    """Make `linked_…` of each `staged_…` table. Rows that repeat a reference are noted and left out.

    Tables rather than views: asked anew by each question, joins this wide are planned as if hardly a row were new.
    """
    for kind in KINDS:
        _drop_repeated(staging, kind)
    connection = staging.connection
    connection.exec_driver_sql(_FIRST_INSTANTS, _first_instants(first_month))
    # Autovacuum analyzes no temporary table.
    connection.exec_driver_sql(f"ANALYZE first_instant, {', '.join(f'staged_{kind.table}' for kind in KINDS)}")
    for kind in KINDS:
        connection.exec_driver_sql(
            f"CREATE TEMP TABLE linked_{kind.table} ON COMMIT DROP AS {_LINKED[kind]}; ANALYZE linked_{kind.table}"
        )


def _drop_repeated(staging: Staging, kind: Kind) -> None:
    # The first row that has the key stays.
    if staging.note_rows(kind, _REPEATS[kind]):
        staging.connection.exec_driver_sql(_DROP_REPEATS[kind])


def _about_repeats(name: str, kind: Kind) -> Statement:
    key, column = ", ".join(kind.key), kind.key[-1]
    return sql(
        __file__,
        name,
        table=kind.table,
        key=key,
        staged_key=", ".join(f"staged.{each}" for each in kind.key),
        repeated_key=", ".join(f"repeated.{each}" for each in kind.key),
        column=column,
        position=kind.position(column),
        repeated=sql(__file__, "repeated", table=kind.table, key=key),
    )


@cache
def _first_instants(month: Month) -> dict[str, list[Any]]:
    zones = sorted(known_zones())
    return {"zones": zones, "instants": [max(month.window(zone).starts_at, _EARLIEST) for zone in zones]}


_REPEATS = {kind: _about_repeats("repeats", kind) for kind in KINDS}
_DROP_REPEATS = {kind: _about_repeats("drop_repeats", kind) for kind in KINDS}
