"""Passes: what a cutoff lets in, what comes while a pass runs, and what was posted before there were passes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, event, text

from tests.support.rows import add_movement, add_organization, add_void
from tests.support.sessions import Session, becomes, waiting_for_a_transaction
from tests.support.settled import MARCH, begin_and_plan, close_month, ledger, settle
from tests.support.sql_statements import LEDGER_ROW, begin_month, execute, insertion, post
from ticketflow_orch import months
from ticketflow_orch.months import Month
from ticketflow_orch.periods import zones
from ticketflow_orch.periods.state import period_state
from ticketflow_orch.settlement import IncompleteSettlementError, invariants
from ticketflow_orch.settlement.due import late_months
from ticketflow_orch.settlement.late_movements import read_to
from ticketflow_orch.settlement.passes import begin_or_join, give_up
from ticketflow_orch.settlement.queries import month_totals

FEBRUARY = Month(2026, 2)

CAPTURE = """
    INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
        commission_tax_bps, occurred_at)
    VALUES ('written over the cutoff', :organization, 'CAPTURE', 'EUR', 100000, 1000, 2000, '2026-03-10 10:00Z')
"""


def captures(engine: Engine) -> list[tuple[int, int]]:
    """What was posted as captures, by sequence."""
    return [(row[0], row[1]) for row in ledger(engine, "sequence", "captures", "organization_id")]


def state_of(engine: Engine, month: Month = MARCH) -> str:
    with engine.connect() as connection:
        return period_state(connection, month)


def count(engine: Engine, table: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def states_of_passes(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT state FROM settlement_pass ORDER BY pass")).scalars())


@pytest.fixture
def writer(engine: Engine) -> Iterator[Session]:
    session = Session(engine)
    yield session
    session.close()


@pytest.mark.every_server
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_pass_waits_for_who_was_writing_at_its_cutoff_and_holds_up_nobody(
    engine: Engine, writer: Session, ending: str
) -> None:
    organization = add_organization(engine)
    writer.run(CAPTURE, organization=organization)
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(settle, engine)
        assert becomes(lambda: count(engine, "settlement_pass") == 1)
        add_movement(engine, organization, 7, "2026-03-10T10:00")
        assert count(engine, "money_movement") == 1
        assert not run.done()
        assert count(engine, "settlement_chunk") == 0
        writer.commit() if ending == "commit" else writer.rollback()
        run.result(timeout=60)
    written = 100_000 if ending == "commit" else 0
    assert captures(engine) == [(0, written)]
    settle(engine)
    assert captures(engine) == [(0, written), (1, 7)]
    assert settle(engine).changed_nothing


def test_a_writer_that_does_not_end_is_named_and_nothing_is_posted(engine: Engine, writer: Session) -> None:
    writer.run(CAPTURE, organization=add_organization(engine))
    with pytest.raises(IncompleteSettlementError, match=rf"after 0\.2 s: process {writer.pid} \(pytest \d+\); let"):
        settle(engine, writer_wait=0.2)
    assert (state_of(engine), captures(engine), count(engine, "outbox_event")) == ("OPEN", [], 0)
    writer.commit()
    assert settle(engine).joined
    assert captures(engine) == [(0, 100_000)]
    assert settle(engine).changed_nothing


def test_a_transaction_that_only_reads_movements_is_not_waited_for(engine: Engine, writer: Session) -> None:
    add_organization(engine)
    writer.run("SELECT * FROM money_movement FOR UPDATE")
    assert settle(engine, writer_wait=0).rows_new == 1


def test_who_joins_a_pass_that_is_planned_does_not_wait_for_those_who_write_by_then(
    engine: Engine, writer: Session
) -> None:
    organization = add_organization(engine)
    begin_and_plan(engine)
    writer.run(CAPTURE, organization=organization)
    # It ends with what was recorded before it began, so it begins another pass, which waits for who writes by then.
    with pytest.raises(IncompleteSettlementError, match="Still writing movements after 0 s"):
        settle(engine, writer_wait=0)
    assert (state_of(engine), captures(engine)) == ("SETTLED", [(0, 0)])
    writer.commit()
    settle(engine)
    assert captures(engine) == [(0, 0), (1, 100_000)]


def test_a_run_that_joins_a_pass_ends_only_with_all_that_was_recorded_before_it_began(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100, "2026-03-10T10:00")
    begin_or_join(engine, MARCH)
    add_movement(engine, organization, 7, "2026-03-10T10:00")
    result = settle(engine)
    assert (result.joined, result.rows_new, result.rows_adjusted) == (True, 1, 1)
    assert captures(engine) == [(0, 100), (1, 7)]
    with engine.connect() as connection:
        assert invariants.dishonest_organizations(connection, MARCH).count == 0
    assert settle(engine).changed_nothing


def test_what_was_corrected_after_a_run_was_interrupted_is_in_what_the_next_run_says_is_settled(engine: Engine) -> None:
    organization = add_organization(engine)
    wrong = add_movement(engine, organization, 100_000, "2026-03-10T10:00")
    begin_and_plan(engine)
    add_void(engine, wrong)
    add_movement(engine, organization, 10_000, "2026-03-10T10:00")
    settle(engine)
    assert sum(row[2] for row in ledger(engine, "month", "sequence", "net")) == 8_800


def test_a_run_whose_pass_is_given_up_by_another_begins_the_next(engine: Engine) -> None:
    organization = add_organization(engine)
    settle(engine)
    add_movement(engine, organization, 100, "2026-03-10T10:00")
    settlement = begin_and_plan(engine)

    @event.listens_for(engine, "before_cursor_execute")
    def give_it_up(connection: object, cursor: object, statement: str, *_: object) -> None:
        if "FOR UPDATE SKIP LOCKED" in statement and states_of_passes(engine) == ["DONE", "RUNNING"]:
            give_up(engine, settlement, "too many fail")

    result = settle(engine, workers=1)
    assert (result.joined, result.rows_adjusted) == (True, 1)
    assert captures(engine) == [(0, 0), (1, 100)]


def test_an_organization_that_comes_while_a_pass_runs_is_in_it_or_in_the_next(engine: Engine) -> None:
    add_organization(engine, id=1000)
    begin_and_plan(engine)
    before, after = add_organization(engine, id=999), add_organization(engine, id=1001)
    settle(engine)
    rows = {organization for _, _, organization in ledger(engine, "sequence", "net", "organization_id")}
    assert rows == {before, 1000, after}
    with engine.connect() as connection:
        assert invariants.organizations_without_row(connection, MARCH).count == 0


def test_a_month_with_nobody_in_it_is_settled_with_nothing(engine: Engine) -> None:
    assert settle(engine).rows == 0
    assert (state_of(engine), count(engine, "outbox_event")) == ("SETTLED", 1)
    add_movement(engine, add_organization(engine), 100, "2026-03-10T10:00")
    assert settle(engine).rows_new == 1


def test_the_first_organization_may_come_while_a_pass_runs(engine: Engine) -> None:
    begin_and_plan(engine)
    add_movement(engine, add_organization(engine), 100, "2026-03-10T10:00")
    assert settle(engine).rows_new == 1


def test_a_time_zone_that_comes_while_a_pass_runs_is_in_the_pass_after_it_before_the_month_is_settled(
    engine: Engine,
) -> None:
    add_organization(engine)
    settlement = begin_and_plan(engine)
    tokyo = add_organization(engine, timezone="Asia/Tokyo")
    add_movement(engine, tokyo, 100, "2026-03-10T10:00")
    settle(engine)
    assert (state_of(engine), count(engine, "outbox_event")) == ("SETTLED", 1)
    assert [row[2] for row in ledger(engine, "organization_id", "currency", "captures")] == [0, 100]
    with engine.connect() as connection:
        # What the first pass left out does not count as read by it.
        assert read_to(connection, [MARCH])[MARCH] > settlement.cutoff


def test_an_organization_in_an_unknown_time_zone_is_parked_by_name_and_the_others_are_settled(engine: Engine) -> None:
    add_organization(engine)
    stray = add_organization(engine, external_ref="stray", timezone="Mars/Olympus_Mons")
    add_movement(engine, stray, 100, "2026-03-31T23:30")
    result = settle(engine)
    assert (state_of(engine), result.rows_new) == ("SETTLED", 1)
    (parked,) = result.parked
    assert (parked.external_ref, parked.why) == (
        "stray",
        "time zone 'Mars/Olympus_Mons' is unknown to tzdata: correct it, or upgrade tzdata",
    )
    # It has movements, but no month was ever cut by that zone.
    execute(engine, "UPDATE organization SET timezone = 'America/New_York' WHERE id = :id", id=stray)
    assert settle(engine).parked == ()
    assert [row[2] for row in ledger(engine, "organization_id", "currency", "captures")] == [0, 100]


def test_a_month_in_which_nobody_s_time_zone_is_known_is_settled_with_nothing(engine: Engine) -> None:
    stray = add_organization(engine, timezone="Mars/Olympus_Mons")
    add_movement(engine, stray, 100, "2026-03-10T10:00")
    for _ in range(2):
        result = settle(engine)
        assert (state_of(engine), result.rows, len(result.parked)) == ("SETTLED", 0, 1)
    execute(engine, "UPDATE organization SET timezone = 'Asia/Tokyo' WHERE id = :id", id=stray)
    assert settle(engine).rows_new == 1


def test_what_came_late_for_a_closed_month_in_an_unknown_time_zone_is_posted_when_the_zone_is_known(
    engine: Engine,
) -> None:
    add_organization(engine)
    settle(engine, FEBRUARY)
    close_month(engine, FEBRUARY)
    stray = add_organization(engine, timezone="Mars/Olympus_Mons")
    add_movement(engine, stray, 100, "2026-02-10T10:00")
    for _ in range(2):
        assert {parked.month for parked in settle(engine).parked} == {FEBRUARY, MARCH}
    execute(engine, "UPDATE organization SET timezone = 'Asia/Tokyo' WHERE id = :id", id=stray)
    assert settle(engine).parked == ()
    assert [row for row in ledger(engine, "month", "origin_month", "captures") if row[2]] == [
        (MARCH.first_day, FEBRUARY.first_day, 100)
    ]


def test_an_organization_whose_time_zone_becomes_unknown_stays_parked_when_something_comes_late(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    organization = add_organization(engine, timezone="America/Coyhaique")
    settle(engine)
    add_movement(engine, organization, 500, "2026-03-10T10:00")
    # An older release of the zone database.
    older = months.known_zones() - {"America/Coyhaique"}
    monkeypatch.setattr(zones, "known_zones", lambda: older)
    assert len(settle(engine).parked) == 1
    with engine.connect() as connection:
        assert invariants.dishonest_organizations(connection, MARCH).count == 0
        assert late_months(connection) == ()


def test_an_unknown_time_zone_that_comes_while_a_pass_runs_is_parked_by_the_next(engine: Engine) -> None:
    add_organization(engine)
    begin_and_plan(engine)
    add_organization(engine, timezone="Mars/Olympus_Mons")
    assert len(settle(engine).parked) == 1
    assert (state_of(engine), len(ledger(engine))) == ("SETTLED", 1)


def test_a_run_that_is_told_to_stop_ends_after_the_chunk_in_hand_and_the_next_goes_on(engine: Engine) -> None:
    for _ in range(4):
        add_organization(engine)
    stop = threading.Event()

    @event.listens_for(engine, "after_cursor_execute")
    def stop_at_the_second_chunk(connection: object, cursor: object, statement: str, *_: object) -> None:
        if "INSERT INTO ledger_entry" in statement and count(engine, "ledger_entry") == 1:
            stop.set()

    with pytest.raises(IncompleteSettlementError, match="The settlement of 2026-03 was stopped; run it again"):
        settle(engine, stop=stop, chunk_size=1, workers=1)
    assert (len(ledger(engine)), state_of(engine)) == (2, "OPEN")
    assert settle(engine).joined
    assert (len(ledger(engine)), state_of(engine)) == (4, "SETTLED")


def test_the_first_pass_corrects_what_was_posted_before_there_were_passes(engine: Engine) -> None:
    right, twice, wrong, gone = (add_organization(engine) for _ in range(4))
    for organization in (right, twice, wrong):
        add_movement(engine, organization, 100, "2026-03-10T10:00")
    for organization, sequence, amount in ((right, 0, 100), (twice, 0, 100), (twice, 1, 100), (wrong, 0, 90)):
        legacy(engine, organization, amount, sequence)
    legacy(engine, gone, 50, 0, currency="USD")
    result = settle(engine)
    assert (result.rows_new, result.rows_adjusted, result.rows_existing) == (1, 3, 4)
    assert ledger(engine, "organization_id", "currency", "sequence", "captures", "net") == [
        (right, "EUR", 0, 100, 88),
        (twice, "EUR", 0, 100, 88),
        (twice, "EUR", 1, 100, 88),
        (twice, "EUR", 2, -100, -88),
        (wrong, "EUR", 0, 90, 78),
        (wrong, "EUR", 1, 10, 10),
        (gone, "EUR", 0, 0, 0),
        (gone, "USD", 0, 50, 38),
        (gone, "USD", 1, -50, -38),
    ]
    assert settle(engine).changed_nothing


def test_an_old_entry_under_a_key_that_no_movement_has_is_corrected_too(engine: Engine) -> None:
    organization = add_organization(engine)
    legacy(engine, organization, 50, 0, currency="USD")
    settle(engine)
    assert ledger(engine, "currency", "sequence", "net") == [("EUR", 0, 0), ("USD", 0, 38), ("USD", 1, -38)]


def test_the_totals_are_what_is_posted_whoever_posted_it(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100, "2026-03-10T10:00")
    legacy(engine, organization, 100, 0)
    assert settle(engine).changed_nothing
    assert totals(engine) == [("EUR", 1, 100, 88)]
    add_movement(engine, organization, 900, "2026-03-10T10:00")
    settle(engine)
    assert totals(engine) == [("EUR", 1, 1000, 880)]
    settle(engine)
    assert totals(engine) == [("EUR", 1, 1000, 880)]


def totals(engine: Engine) -> list[tuple[str, int, int, int]]:
    with engine.connect() as connection:
        found = month_totals(connection, MARCH, MARCH)
    return [(total.currency, total.organizations, total.captures, total.net) for total in found]


@pytest.mark.every_server
def test_what_somebody_else_posts_while_a_chunk_is_posted_is_corrected_and_nobody_is_parked(
    engine: Engine, writer: Session
) -> None:
    organizations = [add_organization(engine) for _ in range(5)]
    begin_month(engine)
    writer.run(insertion("ledger_entry", LEDGER_ROW | {"organization_id": str(organizations[3])}))
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(settle, engine, workers=1)
        assert becomes(lambda: waiting_for_a_transaction(engine))
        writer.commit()
        result = run.result(timeout=60)
    assert (result.rows_new, result.rows_adjusted, result.parked) == (4, 1, ())
    assert ledger(engine, "organization_id", "sequence", "net") == [
        (organizations[0], 0, 0), (organizations[1], 0, 0), (organizations[2], 0, 0),
        (organizations[3], 0, 88), (organizations[3], 1, -88), (organizations[4], 0, 0),
    ]  # fmt: skip


def legacy(engine: Engine, organization: int, amount: int, sequence: int, currency: str = "EUR") -> None:
    """An entry of March as the old settlement posted it, with 10 and 2 taken off."""
    post(
        engine, organization_id=str(organization), captures=str(amount), net=str(amount - 12),
        sequence=str(sequence), currency=f"'{currency}'", settlement_pass="0",
    )  # fmt: skip
