"""What an import refuses: every kind of bad row, reported with file, line, column, value and reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.copies import shared_database
from tests.support.folders import Story, counts, story, write_folder
from tests.support.rows import add_event, add_movement, add_organization, add_reservation
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.importing import ImportRefused, import_folder
from ticketflow_orch.importing.format import KINDS
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month

FIRST = Month(2026, 1)
LONG = "x" * 501
ZERO_RATES = {"commission_rate_bps": "0", "commission_tax_bps": "0"}

# Rows of the good story by number, from 0, what is changed in one of them, and what is said about it.
M_REFUND, M_CAPTURE, M_CHARGEBACK, M_WON, M_VOID, M_FEE, M_MANUAL = range(7)
Bad = tuple[str, int, dict[str, str], str, str]
BAD_CELLS: list[Bad] = [
    ("organizations", 0, {"external_ref": ""}, "external_ref", "must not be empty"),
    ("organizations", 1, {"external_ref": LONG}, "external_ref", "longer than 500"),
    ("organizations", 1, {"name": "a\0b"}, "name", "NUL"),
    ("organizations", 1, {"timezone": "Mars/Olympus"}, "timezone", "no IANA time zone"),
    ("organizations", 0, {"commission_rate_bps": "10001"}, "commission_rate_bps", "from 0 to 10000"),
    ("organizations", 0, {"commission_rate_bps": "-1"}, "commission_rate_bps", "from 0 to 10000"),
    ("organizations", 0, {"commission_rate_bps": "1e3"}, "commission_rate_bps", "not a whole number"),
    ("organizations", 0, {"commission_tax_bps": "21%"}, "commission_tax_bps", "not a whole number"),
    ("organizations", 0, {"commission_tax_bps": "٢١"}, "commission_tax_bps", "not a whole number"),
    ("organizations", 0, {"joined_on": "2026-02-29"}, "joined_on", "no calendar"),
    ("organizations", 0, {"joined_on": "15/01/2025"}, "joined_on", "YYYY-MM-DD"),
    ("organizations", 0, {"left_on": "never"}, "left_on", "YYYY-MM-DD"),
    ("events", 0, {"status": "LIVE"}, "status", "DRAFT, OPEN, CLOSED, CANCELLED"),
    ("events", 0, {"starts_at": "2026-06-01T20:00:00"}, "starts_at", "no offset"),
    ("events", 0, {"starts_at": "2026-06-31T20:00:00Z"}, "starts_at", "no calendar"),
    ("events", 0, {"starts_at": "2026-06-01T24:00:00Z"}, "starts_at", "not an instant"),
    ("events", 0, {"starts_at": "2026-06-01T20:00:60Z"}, "starts_at", "not an instant"),
    ("events", 0, {"starts_at": "2026-06-01T20:00:00+15:00"}, "starts_at", "not an instant"),
    ("events", 0, {"starts_at": "2026-06-01T20:00:00 Europe/Madrid"}, "starts_at", "not an instant"),
    ("events", 0, {"ends_at": "2026-06-01T23:00:00.1234567Z"}, "ends_at", "not an instant"),
    ("events", 0, {"ends_at": "1780351200"}, "ends_at", "not an instant"),
    ("events", 0, {"timezone": "CEST"}, "timezone", "no IANA time zone"),
    ("reservations", 0, {"quantity": "0"}, "quantity", "from 1 to 2147483647"),
    ("reservations", 0, {"quantity": "2147483648"}, "quantity", "from 1 to 2147483647"),
    ("reservations", 0, {"status": "confirmed"}, "status", "ACTIVE, CONFIRMED, EXPIRED, CANCELLED"),
    ("reservations", 2, {"confirmed_at": "yesterday"}, "confirmed_at", "not an instant"),
    ("money_movements", M_CAPTURE, {"kind": "SALE"}, "kind", "CAPTURE, REFUND"),
    ("money_movements", M_CAPTURE, {"is_void": "no"}, "is_void", "neither true nor false"),
    ("money_movements", M_CAPTURE, {"amount": "50.00"}, "amount", "not a whole number"),
    ("money_movements", M_CAPTURE, {"amount": "9223372036854775808"}, "amount", "not a whole number"),
    ("money_movements", M_REFUND, {"amount": "-9223372036854775808"}, "amount", "not a whole number"),
    ("money_movements", M_CAPTURE, {"amount": "9" * 5000}, "amount", "not a whole number"),
]
BAD_ROWS: list[Bad] = [
    ("organizations", 0, {"currency": "EUR "}, "currency", "no known currency"),
    ("organizations", 0, {"currency": "XXX"}, "currency", "no known currency"),
    ("organizations", 0, {"left_on": "2025-01-14"}, "left_on", "before joined_on, 2025-01-15"),
    ("events", 0, {"organization_ref": "o9"}, "organization_ref", "names no organization"),
    ("events", 0, {"ends_at": "2026-06-01T18:00:00+00:00"}, "ends_at", "not after starts_at"),
    ("reservations", 0, {"event_ref": "o1"}, "event_ref", "names no event"),
    ("reservations", 2, {"event_ref": "e3"}, "status", "OPEN, and this one is CLOSED"),
    ("reservations", 0, {"confirmed_at": ""}, "confirmed_at", "must not be empty"),
    ("money_movements", M_FEE, {"organization_ref": "o9"}, "organization_ref", "names no organization"),
    ("money_movements", M_CAPTURE, {"reservation_ref": "r9"}, "reservation_ref", "names no reservation"),
    ("money_movements", M_CAPTURE, {"reservation_ref": "r2"}, "reservation_ref", "of another organization, o2"),
    ("money_movements", M_FEE, {"currency": "XXX"}, "currency", "no known currency"),
    ("money_movements", M_REFUND, {"currency": "USD"}, "currency", "what it reverses, EUR"),
    ("money_movements", M_MANUAL, {"amount": "0"}, "amount", "must not be zero"),
    ("money_movements", M_REFUND, {"amount": "5000"}, "amount", "must be negative for a REFUND"),
    ("money_movements", M_CHARGEBACK, {"amount": "5000"}, "amount", "must be negative for a CHARGEBACK"),
    ("money_movements", M_FEE, {"amount": "100"}, "amount", "must be negative for a FEE"),
    ("money_movements", M_WON, {"amount": "-5000"}, "amount", "must be positive for a CHARGEBACK_REVERSAL"),
    ("money_movements", M_VOID, {"amount": "-4999"}, "amount", "opposite of what it voids, 5000"),
    ("money_movements", M_VOID, {"occurred_at": "2026-05-01T10:05:01+00:00"}, "occurred_at", "2026-05-01T10:05:00"),
    ("money_movements", M_VOID, ZERO_RATES | {"commission_tax_bps": "2100"}, "commission_rate_bps", "reverses, 1000"),
    ("money_movements", M_REFUND, {"commission_rate_bps": "999"}, "commission_rate_bps", "reverses, 1000"),
    ("money_movements", M_REFUND, {"commission_tax_bps": "0"}, "commission_tax_bps", "reverses, 2100"),
    ("money_movements", M_FEE, {"commission_rate_bps": "1"}, "commission_rate_bps", "must be 0 for a FEE"),
    ("money_movements", M_MANUAL, {"commission_tax_bps": "1"}, "commission_tax_bps", "must be 0 for a MANUAL"),
    ("money_movements", M_FEE, {"reason": ""}, "reason", "must not be empty for a FEE"),
    ("money_movements", M_REFUND, {"reverses_ref": ""}, "reverses_ref", "must name what is reversed by a REFUND"),
    ("money_movements", M_FEE, {"reverses_ref": "m7"}, "reverses_ref", "must be empty for a FEE"),
    ("money_movements", M_REFUND, {"reverses_ref": "m9"}, "reverses_ref", "names no movement"),
    ("money_movements", M_REFUND, {"reverses_ref": "m2"}, "reverses_ref", "no void, and this is a REFUND"),
    ("money_movements", M_REFUND, {"reverses_ref": "m5"}, "reverses_ref", "this is the void of a CAPTURE"),
    ("money_movements", M_WON, {"reverses_ref": "m1"}, "reverses_ref", "must name a CHARGEBACK"),
    ("money_movements", M_VOID, {"reverses_ref": "m4"}, "reverses_ref", "must name a CAPTURE"),
    (
        "money_movements", M_REFUND, {"organization_ref": "o2", "reservation_ref": ""},
        "reverses_ref", "of another organization, o1",
    ),
    # Local midnight of the first of the first month, less a second, in Tokyo.
    (
        "money_movements", M_FEE, {"organization_ref": "o2", "occurred_at": "2025-12-31T14:59:59+00:00"},
        "occurred_at", "2025-12-31T15:00:00+00:00",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def untouched(server: EmbeddedServer) -> Iterator[Engine]:
    """One database for all that is refused outright, since none of it may leave a trace."""
    with shared_database(server) as engine:
        yield engine


def refused(engine: Engine, folder: Path, given: Story) -> ImportRefused:
    with pytest.raises(ImportRefused) as caught:
        import_folder(engine, write_folder(folder, given), FIRST)
    return caught.value


def line_of(given: Story, kind: str, number: int) -> int:
    """Where row `number` starts in the CSV file; cells may hold line breaks."""
    return 2 + sum(1 + sum(cell.count("\n") for cell in row.values()) for row in given[kind][:number])


@pytest.mark.parametrize("bad", BAD_CELLS + BAD_ROWS, ids=lambda bad: f"{bad[0]}-{bad[3]}-{bad[4]}")
def test_a_bad_row_is_told_by_file_line_column_value_and_reason(untouched: Engine, tmp_path: Path, bad: Bad) -> None:
    kind, number, change, column, reason = bad
    given = story()
    given[kind][number] |= change
    error = refused(untouched, tmp_path, given)
    own = [problem for problem in error.problems if problem.file == f"{kind}.csv" and problem.column == column]
    assert [(problem.line, problem.value) for problem in own] == [
        (line_of(given, kind, number), shortened(given[kind][number][column]))
    ]
    assert reason in own[0].reason
    assert sum(counts(untouched).values()) == 0


def shortened(value: str) -> str:
    return value if len(value) <= 200 else value[:200] + "…"


def test_whatever_is_right_about_a_bad_row_is_not_complained_of(untouched: Engine, tmp_path: Path) -> None:
    for kind, number, change, column, reason in BAD_ROWS:
        if (kind, column) == ("events", "organization_ref"):
            continue  # The event's movements are then really another organization's.
        given = story()
        given[kind][number] |= change
        assert refused(untouched, tmp_path, given).count == 1, (change, column, reason)


def test_a_row_with_a_bad_cell_can_still_be_referred_to(engine: Engine, tmp_path: Path) -> None:
    given = story()
    given["organizations"][0]["joined_on"] = "?"
    given["money_movements"][M_CAPTURE]["amount"] = "?"
    assert [problem.column for problem in refused(engine, tmp_path, given).problems] == ["joined_on", "amount"]


def test_a_repeated_reference_is_refused_with_the_line_it_repeats(engine: Engine, tmp_path: Path) -> None:
    given = story()
    given["events"].append(given["events"][0])
    error = refused(engine, tmp_path, given)
    assert [(problem.line, problem.column, problem.value) for problem in error.problems] == [(6, "external_ref", "e1")]
    assert "line 2 already" in error.problems[0].reason


def test_rows_that_are_too_short_or_too_long_are_refused(engine: Engine, tmp_path: Path) -> None:
    write_folder(tmp_path, {"organizations": story()["organizations"][:1]})
    with (tmp_path / "organizations.csv").open("a") as file:
        file.write("o3,Short\no4" + "," * 10 + "\n")
    with pytest.raises(ImportRefused) as caught:
        import_folder(engine, tmp_path, FIRST)
    assert [(problem.line, problem.value, problem.reason) for problem in caught.value.problems] == [
        (3, "2 cells", "do not fit the header's 10 columns"),
        (4, "11 cells", "do not fit the header's 10 columns"),
    ]


def test_line_breaks_in_cells_and_empty_lines_leave_the_line_numbers_right(engine: Engine, tmp_path: Path) -> None:
    given = {"organizations": story()["organizations"]}
    given["organizations"][0]["name"] = "three\r\nlines\nlong"
    given["organizations"][1]["timezone"] = "nowhere"
    write_folder(tmp_path, given)
    path = tmp_path / "organizations.csv"
    path.write_bytes(path.read_bytes().replace(b"\no2", b"\n\n\no2"))
    with pytest.raises(ImportRefused) as caught:
        import_folder(engine, tmp_path, FIRST)
    assert caught.value.problems[0].line == 7
    assert path.read_bytes().split(b"\n")[6].startswith(b"o2")


@pytest.mark.parametrize("where", ["cells", "rows"])
def test_the_first_hundred_problems_are_listed_in_order_and_all_are_counted(
    engine: Engine, tmp_path: Path, where: str
) -> None:
    given = story()
    bad = {"amount": "?"} if where == "cells" else {"currency": "XXX"}
    fee = given["money_movements"][M_FEE]
    given["money_movements"] += [fee | {"external_ref": f"x{number}"} | bad for number in range(1500)]
    given["events"][2]["status"] = "?"
    error = refused(engine, tmp_path, given)
    assert error.count == 1501
    assert [(problem.file, problem.line) for problem in error.problems] == [
        ("events.csv", 5),
        *[("money_movements.csv", line) for line in range(9, 108)],
    ]
    assert str(error).splitlines()[:2] == [
        "Nothing was imported: 1,501 problems (the first 100 are listed). Fix the files and import the folder again.",
        "  events.csv, line 5, status: '?' is none of DRAFT, OPEN, CLOSED, CANCELLED",
    ]
    assert len(str(error).splitlines()) == 101


def test_movements_that_reverse_each_other_or_themselves_are_refused(engine: Engine, tmp_path: Path) -> None:
    given = story()
    given["money_movements"][M_VOID]["reverses_ref"] = "m5"
    given["money_movements"][M_CHARGEBACK]["reverses_ref"] = "m4"
    error = refused(engine, tmp_path, given)
    assert [(problem.column, problem.value) for problem in error.problems] == [
        ("reverses_ref", "m4"),
        ("amount", "-5000"),
        ("reverses_ref", "m5"),
    ]


def test_a_movement_is_voided_once(engine: Engine, tmp_path: Path) -> None:
    given = story()
    void = given["money_movements"][M_VOID]
    given["money_movements"].append(void | {"external_ref": "m8"})
    (problem,) = refused(engine, tmp_path, given).problems
    assert (problem.line, problem.column, problem.value) == (9, "reverses_ref", "m1")
    assert problem.reason == "is voided already, by m5"
    import_folder(engine, write_folder(tmp_path, story()), FIRST)
    (problem,) = refused(engine, tmp_path, given).problems
    assert (problem.line, problem.reason) == (9, "is voided already, by m5")


def test_a_refund_may_leave_the_commission_with_the_platform(engine: Engine, tmp_path: Path) -> None:
    given = story()
    given["money_movements"][M_REFUND] |= ZERO_RATES
    assert import_folder(engine, write_folder(tmp_path, given), FIRST).new.money_movements == 7


def test_the_first_instant_of_the_first_month_is_let_in_zone_by_zone(engine: Engine, tmp_path: Path) -> None:
    given = story()
    given["money_movements"][M_FEE] |= {"organization_ref": "o2", "occurred_at": "2025-12-31T15:00:00Z"}
    given["money_movements"][M_MANUAL] |= {"organization_ref": "o1", "occurred_at": "2025-12-31T23:00:00Z"}
    assert import_folder(engine, write_folder(tmp_path, given), FIRST).new.money_movements == 7


# What the database holds already is judged like what the folder brings.
REFERRING = {
    "organization_ref": "stored", "reservation_ref": "stored-r", "kind": "REFUND", "amount": "-100",
    "reverses_ref": "stored-m", "commission_tax_bps": "2000",
}  # fmt: skip


def with_stored_rows(engine: Engine, **values: Any) -> Story:
    organization = add_organization(engine, external_ref="stored")
    event = add_event(engine, organization, external_ref="stored-e")
    reservation = add_reservation(engine, event, public_ref="stored-r")
    add_movement(engine, organization, 100, "2026-05-01T10:00", external_ref="stored-m", reservation_id=reservation)
    given = story()
    given["reservations"][2]["event_ref"] = "stored-e"
    given["money_movements"][M_REFUND] |= REFERRING | values
    return given


def test_rows_may_refer_to_what_the_database_holds(engine: Engine, tmp_path: Path) -> None:
    given = with_stored_rows(engine)
    assert import_folder(engine, write_folder(tmp_path, given), FIRST).new.total == 16


@pytest.mark.parametrize(
    ("change", "column", "reason"),
    [
        ({"commission_rate_bps": "500"}, "commission_rate_bps", "reverses, 1000"),
        ({"currency": "USD"}, "currency", "reverses, EUR"),
        ({"organization_ref": "o1", "reservation_ref": ""}, "reverses_ref", "another organization, stored"),
        ({"reservation_ref": "r1"}, "reservation_ref", "another organization, o1"),
        ({"organization_ref": "o1", "reverses_ref": "m1", "commission_tax_bps": "2100"}, "reservation_ref", "stored"),
        ({"kind": "CHARGEBACK_REVERSAL", "amount": "100"}, "reverses_ref", "must name a CHARGEBACK"),
        ({"is_void": "true", "kind": "CAPTURE", "amount": "-99", "occurred_at": "2026-05-01T10:00Z"}, "amount", "100"),
        ({"is_void": "true", "kind": "CAPTURE", "amount": "-100"}, "occurred_at", "2026-05-01T10:00:00+00:00"),
    ],
)
def test_references_into_the_database_keep_the_same_rules(
    engine: Engine, tmp_path: Path, change: dict[str, str], column: str, reason: str
) -> None:
    error = refused(engine, tmp_path, with_stored_rows(engine, **change))
    assert [problem.column for problem in error.problems] == [column]
    assert reason in error.problems[0].reason


def test_a_stored_organization_in_a_zone_that_tzdata_does_not_know_takes_no_movements(
    engine: Engine, tmp_path: Path
) -> None:
    add_organization(engine, external_ref="stored", timezone="Mars/Olympus")
    given = story()
    given["money_movements"][M_FEE]["organization_ref"] = "stored"
    (problem,) = refused(engine, tmp_path, given).problems
    assert (problem.column, problem.value) == ("organization_ref", "stored")
    assert "Mars/Olympus" in problem.reason


# A change to each column of each kind that would be good in itself.
OTHER_CONTENT = [
    ("organizations", 1, {"name": "Kabuki-za"}, "'Teatro Ñ'"),
    ("organizations", 1, {"timezone": "Asia/Seoul"}, "'Asia/Tokyo'"),
    ("organizations", 1, {"currency": "KWD"}, "'JPY'"),
    ("organizations", 1, {"commission_rate_bps": "900"}, "'1000'"),
    ("organizations", 1, {"commission_tax_bps": "900"}, "'2100'"),
    ("organizations", 1, {"joined_on": "2025-01-16"}, "'2025-01-15'"),
    ("organizations", 1, {"left_on": ""}, "'2026-06-30'"),
    ("organizations", 1, {"contact_email": "a@example.com"}, "nothing"),
    ("organizations", 1, {"locale": "ja-JP"}, "'es-ES'"),
    ("organizations", 1, {"payouts_from": "2026-03"}, "nothing"),
    ("events", 2, {"organization_ref": "o2"}, "'o1'"),
    ("events", 2, {"title": "Tosca"}, "'Carmen'"),
    ("events", 2, {"status": "CANCELLED"}, "'CLOSED'"),
    ("events", 2, {"starts_at": "2026-06-01T20:00:00+00:00"}, "'2026-06-01T18:00:00+00:00'"),
    ("events", 2, {"ends_at": "2026-06-01T23:00:00+00:00"}, "'2026-06-01T21:00:00+00:00'"),
    ("events", 2, {"timezone": "Europe/Paris"}, "'Europe/Madrid'"),
    ("events", 2, {"venue": "Arena Sur"}, "nothing"),
    ("reservations", 3, {"event_ref": "e1"}, "'e3'"),
    ("reservations", 0, {"buyer_email": "b@example.com"}, "'ana@example.com'"),
    ("reservations", 0, {"quantity": "3"}, "'2'"),
    ("reservations", 0, {"status": "EXPIRED"}, "'CONFIRMED'"),
    ("reservations", 0, {"created_at": "2026-05-01T09:00:00+00:00"}, "'2026-05-01T10:00:00+00:00'"),
    ("reservations", 0, {"expires_at": "2026-05-01T11:00:00+00:00"}, "'2026-05-01T10:15:00+00:00'"),
    ("reservations", 0, {"confirmed_at": "2026-05-01T10:06:00+00:00"}, "'2026-05-01T10:05:00+00:00'"),
    ("reservations", 0, {"payment_started_at": "2026-05-01T10:04:00+00:00"}, "nothing"),
    ("money_movements", M_FEE, {"organization_ref": "o2"}, "'o1'"),
    ("money_movements", M_CAPTURE, {"reservation_ref": ""}, "'r1'"),
    ("money_movements", M_FEE, {"kind": "MANUAL"}, "'FEE'"),
    ("money_movements", M_FEE, {"currency": "USD"}, "'EUR'"),
    ("money_movements", M_FEE, {"amount": "-101"}, "'-100'"),
    ("money_movements", M_CAPTURE, {"commission_rate_bps": "1001"}, "'1000'"),
    ("money_movements", M_CAPTURE, {"commission_tax_bps": "2101"}, "'2100'"),
    ("money_movements", M_REFUND, {"reverses_ref": "m3"}, "'m1'"),
    ("money_movements", M_FEE, {"occurred_at": "2026-05-01T10:05:01+00:00"}, "'2026-05-01T10:05:00+00:00'"),
    ("money_movements", M_VOID, {"is_void": "false"}, "'true'"),
    ("money_movements", M_FEE, {"reason": "as shouted"}, "'as agreed'"),
]


def test_a_row_that_is_there_with_other_content_is_refused_with_both_values(engine: Engine, tmp_path: Path) -> None:
    import_folder(engine, write_folder(tmp_path, story()), FIRST)
    before = counts(engine)
    for kind, number, change, held in OTHER_CONTENT:
        given = story()
        ((column, value),) = change.items()
        for row in given[kind]:
            row.setdefault(column, "")
        given[kind][number] |= change
        error = refused(engine, tmp_path, given)
        assert [(problem.column, problem.value) for problem in error.problems] == [(column, value)]
        assert f"which holds {held}" in error.problems[0].reason
        assert counts(engine) == before


def test_other_content_is_tried_for_every_column() -> None:
    # Opening balances are tried among their own tests.
    tried = {(kind, column) for kind, _, change, _ in OTHER_CONTENT for column in change}
    assert tried == {(kind.name, column.name) for kind in KINDS[:-1] for column in kind.columns[1:]}


def test_a_row_that_the_platform_has_moved_on_is_still_the_same(engine: Engine, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, story())
    import_folder(engine, folder, FIRST)
    with engine.begin() as connection:
        for statement in (
            "UPDATE reservation SET status = 'CONFIRMED', payment_started_at = now(), confirmed_at = now()"
            " WHERE public_ref = 'r3'",
            "UPDATE reservation SET status = 'CANCELLED' WHERE public_ref = 'r1'",
            "UPDATE event SET status = 'CLOSED', closed_at = now() WHERE external_ref = 'e1'",
        ):
            connection.execute(text(statement))
    assert import_folder(engine, folder, FIRST).import_id is None


def test_a_later_first_month_does_not_refuse_what_is_there_already(engine: Engine, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, story())
    import_folder(engine, folder, FIRST)
    assert import_folder(engine, folder, Month(2026, 12)).import_id is None


def test_a_row_that_somebody_else_inserts_after_the_import_has_looked_is_one_sentence(
    engine: Engine, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, story())

    def overtake(step: str, _rows: int) -> None:
        if step == "checking money_movements":
            add_organization(engine, external_ref="o1")

    with pytest.raises(TicketflowError, match="Another session changed the same rows"):
        import_folder(engine, folder, FIRST, overtake)
    assert counts(engine) == {"organization": 1, "event": 0, "reservation": 0, "money_movement": 0, "data_import": 0}
