"""Who makes and changes the rows of a table: one room each, and the outbox's through one door."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.schema import PAGE

ROOT = Path(__file__).parents[1]
FOLDERS = ("ticketflow_orch", "resources", "assets", "schedules", "sensors")
# What more than one room makes: who replaces a currency posts for it, and each finds what it has to leave out.
SHARED = {
    "money_movement": {"closing", "importing"},
    "parked_organization": {"payouts", "settlement"},
}
_INSERTED = re.compile(r"\bINSERT INTO (\w+)")
_CHANGED = re.compile(r"\b(?:UPDATE|DELETE FROM|LOCK TABLE) (\w+)")
# What settling a month is called in the events about it.
_AGGREGATE = 'aggregate_type="settlement_period"'


def sources() -> Iterator[tuple[Path, str]]:
    """Every file with code or SQL but for revisions, which build tables and are nobody's, and what stands in it."""
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in {".py", ".sql"} and "migrations" not in file.parts and file != PAGE:
                yield file.relative_to(ROOT), file.read_text("utf-8")


def naming(pattern: re.Pattern[str]) -> dict[str, set[Path]]:
    """The files in which `pattern` names each table."""
    found: dict[str, set[Path]] = defaultdict(set)
    for file, source in sources():
        for table in pattern.findall(source):
            found[table].add(file)
    return found


def inserting() -> dict[str, set[Path]]:
    """The files that insert into each table, by its name."""
    return naming(_INSERTED)


def tables() -> set[str]:
    return set(re.findall(r"^CREATE TABLE public\.(\w+)", PAGE.read_text("utf-8"), re.MULTILINE))


def test_events_are_written_through_one_door() -> None:
    assert inserting()["outbox_event"] == {Path("ticketflow_orch/outbox/events.sql")}


def test_events_are_changed_by_the_outbox_but_for_what_a_buyer_has_erased() -> None:
    others = {file for file in naming(_CHANGED)["outbox_event"] if file.parts[1] != "outbox"}
    assert others == {Path("ticketflow_orch/ticketing/erasure.sql")}


def test_how_far_a_month_is_is_asked_and_changed_in_one_place() -> None:
    named = {file for file, source in sources() if "settlement_period" in source.replace(_AGGREGATE, "")}
    # Grants name every table, and ask nothing.
    named.discard(Path("ticketflow_orch/db/grants.sql"))
    assert named == {Path("ticketflow_orch/periods/state.py"), Path("ticketflow_orch/periods/state.sql")}


def test_the_rows_of_a_table_are_made_in_one_room() -> None:
    rooms = {table: {file.parts[1] for file in files} for table, files in inserting().items() if table in tables()}
    assert len(rooms) > 25
    assert {table: found for table, found in rooms.items() if len(found) > 1} == SHARED


def test_the_page_of_the_tables_says_who_makes_their_rows() -> None:
    made = {table: {file.parts[1] for file in files} for table, files in inserting().items()}
    elsewhere = {"the application", "a trigger", "a revision"}
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", (ROOT / "docs" / "database.md").read_text("utf-8"), re.MULTILINE)
    said = {table: set(who.split(", ")) for names, who in rows for table in re.findall(r"`(\w+)`", names)}
    assert said.keys() == tables() - {"alembic_version"}
    assert {table: who - elsewhere for table, who in said.items()} == {table: made.get(table, set()) for table in said}
