"""Months partition the time line in every zone on earth, and nothing about this process or machine changes them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import instant
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month, Window, known_zones, last_zone_to_finish, months_between, zone

MICROSECOND = timedelta(microseconds=1)
ZONES = sorted(known_zones())
months = st.builds(Month, st.integers(1970, 2100), st.integers(1, 12))
zones = st.sampled_from(ZONES)
instants = st.datetimes(datetime(1970, 1, 3), datetime(2100, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001

# Zone and month whose first midnight does not exist, or exists twice: (zone, month, its start, local time there).
MIDNIGHT_SKIPPED = [
    ("America/Asuncion", "2017-10", "2017-10-01T04:00", "2017-10-01T01:00-03:00"),
    ("America/Asuncion", "2023-10", "2023-10-01T04:00", "2023-10-01T01:00-03:00"),
    ("America/Havana", "2012-04", "2012-04-01T05:00", "2012-04-01T01:00-04:00"),
    ("Asia/Beirut", "1990-05", "1990-04-30T22:00", "1990-05-01T01:00+03:00"),
    ("Asia/Kathmandu", "1986-01", "1985-12-31T18:30", "1986-01-01T00:15+05:45"),
    ("Australia/Lord_Howe", "1981-03", "1981-02-28T14:00", "1981-03-01T00:30+10:30"),
    ("Asia/Ust-Nera", "1981-04", "1981-03-31T15:00", "1981-04-01T03:00+12:00"),
]
MIDNIGHT_TWICE = [
    ("America/Havana", "2026-11", "2026-11-01T04:00", "2026-11-01T00:00-04:00"),
    ("America/Havana", "2020-11", "2020-11-01T04:00", "2020-11-01T00:00-04:00"),
    ("America/St_Johns", "2009-11", "2009-11-01T02:30", "2009-11-01T00:00-02:30"),
    ("Asia/Gaza", "2004-10", "2004-09-30T21:00", "2004-10-01T00:00+03:00"),
]


def test_windows_join_without_gap_or_overlap_in_every_zone() -> None:
    for name in ZONES:
        windows = [month.window(name) for month in months_between(Month(2010, 1), Month(2040, 12))]
        assert all(this.ends_at == following.starts_at for this, following in pairwise(windows)), name
        assert all(timedelta(27) < window.ends_at - window.starts_at < timedelta(32) for window in windows), name


@given(month=months, name=zones)
def test_a_window_ends_where_the_next_begins(month: Month, name: str) -> None:
    window, following = month.window(name), month.next().window(name)
    assert window.starts_at < window.ends_at == following.starts_at
    assert window.starts_at.tzinfo is UTC


@given(month=months, name=zones)
def test_the_edges_of_a_month_are_its_own_first_instant_and_the_next_one_s(month: Month, name: str) -> None:
    window = month.window(name)
    edges = [window.starts_at - MICROSECOND, window.starts_at, window.starts_at + MICROSECOND]
    edges += [window.ends_at - MICROSECOND, window.ends_at, window.ends_at + MICROSECOND]
    previous, following = month.previous(), month.next()
    assert [edge in window for edge in edges] == [False, True, True, True, False, False]
    assert [Month.of_instant(edge, name) for edge in edges] == [previous, month, month, month, following, following]


@given(instant_=instants, name=zones)
def test_every_instant_is_in_exactly_one_month(instant_: datetime, name: str) -> None:
    month = Month.of_instant(instant_, name)
    assert [instant_ in near.window(name) for near in (month.previous(), month, month.next())] == [False, True, False]


@given(month=months)
def test_next_and_previous_undo_each_other(month: Month) -> None:
    assert month.next().previous() == month == month.previous().next()
    assert month.previous() < month < month.next()
    assert Month.of_day(month.next().first_day - timedelta(days=1)) == month
    assert [str(each) for each in months_between(month, month.next())] == [str(month), str(month.next())]


@pytest.mark.parametrize(
    ("name", "key", "hours"),
    [
        ("Europe/Madrid", "2026-03", 31 * 24 - 1),
        ("Europe/Madrid", "2026-10", 31 * 24 + 1),
        ("Europe/Madrid", "2024-02", 29 * 24),
        ("Europe/Madrid", "2025-02", 28 * 24),
        ("Europe/Dublin", "2026-03", 31 * 24 - 1),
        ("America/New_York", "2026-03", 31 * 24 - 1),
        ("America/New_York", "2026-11", 30 * 24 + 1),
        ("Australia/Lord_Howe", "2026-04", 30 * 24 + 0.5),
        ("Australia/Lord_Howe", "2026-10", 31 * 24 - 0.5),
        ("Antarctica/Troll", "2026-03", 31 * 24 - 2),
        ("Africa/Casablanca", "2026-02", 28 * 24 + 1),
        ("America/Caracas", "2016-05", 31 * 24 - 0.5),
        ("Pacific/Apia", "2011-12", 30 * 24),
        ("Asia/Kolkata", "2026-03", 31 * 24),
        ("UTC", "2000-02", 29 * 24),
    ],
)
def test_a_month_has_the_hours_that_its_clocks_show(name: str, key: str, hours: float) -> None:
    window = Month.parse(key).window(name)
    assert window.ends_at - window.starts_at == timedelta(hours=hours)


@pytest.mark.parametrize(("name", "key", "starts_at", "local"), MIDNIGHT_SKIPPED + MIDNIGHT_TWICE)
def test_a_month_starts_with_its_first_instant_when_midnight_is_odd(
    name: str, key: str, starts_at: str, local: str
) -> None:
    window = Month.parse(key).window(name)
    assert window.starts_at == instant(starts_at)
    assert window.starts_at.astimezone(zone(name)).isoformat(timespec="minutes") == local
    assert (window.starts_at - MICROSECOND).astimezone(zone(name)).date() == Month.parse(key).first_day - timedelta(1)


def test_a_month_has_begun_even_when_the_clock_runs_back_over_its_midnight() -> None:
    # At 00:01 of the 1st St John's clocks went back to 23:01 of the 31st.
    second_31st = instant("2009-11-01T02:45")
    assert second_31st.astimezone(zone("America/St_Johns")).date() == date(2009, 10, 31)
    assert Month.of_instant(second_31st, "America/St_Johns") == Month(2009, 11)


def test_the_far_east_begins_and_the_far_west_ends() -> None:
    march = Month(2026, 3)
    assert march.window("Pacific/Kiritimati").starts_at == instant("2026-02-28T10:00")
    assert march.window("Pacific/Pago_Pago").ends_at == instant("2026-04-01T11:00")
    everywhere = last_zone_to_finish(march, ZONES)
    assert everywhere == ("Etc/GMT+12", instant("2026-04-01T12:00"))
    # Day 2 at 05:00 in the farthest east, where a schedule could stand at the earliest, is late enough for all.
    assert everywhere[1] < datetime(2026, 4, 2, 5, tzinfo=timezone(timedelta(hours=14)))
    assert last_zone_to_finish(march, ["Europe/Madrid", "Asia/Tokyo"])[0] == "Europe/Madrid"


def test_a_window_is_half_open() -> None:
    window = Window(instant("2026-03-01"), instant("2026-04-01"))
    assert (window.starts_at in window, window.ends_at in window) == (True, False)


def test_offset_and_zone_of_an_instant_do_not_matter() -> None:
    edge = instant("2026-03-31T22:00")
    for offset in (-12, 0, 14):
        shown = edge.astimezone(timezone(timedelta(hours=offset)))
        assert Month.of_instant(shown, "Europe/Madrid") == Month(2026, 4)
        assert Month.of_instant(shown - MICROSECOND, "Europe/Madrid") == Month(2026, 3)


@pytest.mark.parametrize("key", ["1970-01", "2026-01", "2026-12", "9998-12"])
def test_a_key_is_read_as_it_is_written(key: str) -> None:
    month = Month.parse(key)
    assert str(month) == key
    assert all(month.window(name).starts_at < month.window(name).ends_at for name in ("Etc/GMT+12", "Etc/GMT-14"))


@pytest.mark.parametrize(
    "key",
    [
        "", "2026", "2026-1", "2026-00", "2026-13", "26-03", "2026-3 ", " 2026-03", "2026-03 ", "2026-03\n", "2026/03",
        "2026-03-01", "202603", "0000-01", "1969-12", "9999-12", "-2026-03", "+2026-03",
        "２０２６-03", "٢٠٢٦-٠٣", "2026−03", "2026-0３", "2026-03T", "latest",
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_sentence(key: str) -> None:
    with pytest.raises(TicketflowError) as caught:
        Month.parse(key)
    assert str(caught.value) == f"{key!r} is not a month; write it as YYYY-MM, for example 2026-03."


@given(st.from_regex(r"\s?\d{1,5}-\d\d?\s?", fullmatch=True))
def test_a_key_that_is_taken_is_written_the_same_again(key: str) -> None:
    try:
        month = Month.parse(key)
    except TicketflowError:
        return
    assert str(month) == key


@pytest.mark.parametrize(
    "name", ["", "Madrid", "europe/madrid", "CEST", "+01:00", "../Europe/Madrid", "Europe", "localtime"]
)
def test_an_unknown_zone_is_an_error(name: str) -> None:
    with pytest.raises(TicketflowError) as caught:
        Month(2026, 3).window(name)
    assert repr(name) in str(caught.value)
    assert "use an IANA name" in str(caught.value)


@pytest.fixture(params=["Pacific/Kiritimati", "Pacific/Pago_Pago", "America/Havana"])
def process_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The process lives in another zone while the test runs."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def test_the_process_s_zone_does_not_matter(process_zone: str) -> None:
    assert datetime.now().astimezone().utcoffset() != timedelta(0)
    assert Month(2026, 3).window("Europe/Madrid") == Window(instant("2026-02-28T23:00"), instant("2026-03-31T22:00"))
    assert Month.of_instant(instant("2026-03-31T22:00"), "Europe/Madrid") == Month(2026, 4)


def test_zone_data_other_than_ours_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "Europe").mkdir()
    (tmp_path / "Europe" / "Madrid").write_bytes(zone_file("Asia/Tokyo"))
    program = """
from zoneinfo import ZoneInfo
from datetime import datetime
from ticketflow_orch.months import Month
print(ZoneInfo("Europe/Madrid").utcoffset(datetime(2026, 3, 1)), Month(2026, 3).window("Europe/Madrid").starts_at)
"""
    environment = {**os.environ, "PYTHONTZPATH": str(tmp_path), "TZ": "Asia/Tokyo"}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "9:00:00 2026-02-28 23:00:00+00:00"


def zone_file(name: str) -> bytes:
    return resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).read_bytes()
