"""The page of a statement: the figures in the reader's language, numbers, dates and zone, and nothing that runs."""

from __future__ import annotations

import csv
import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.support.rows import add_movement, add_organization
from tests.support.sql_statements import execute
from tests.support.statements import FEBRUARY, MARCH, close, state
from ticketflow_orch.formatting.localization import LANGUAGES, amount, percentage, reader_locale
from ticketflow_orch.statements import html as page_module


def page_of(folder: Path, reference: str = "teatro", currency: str = "EUR") -> str:
    return (folder / "2026-03" / "organizations" / reference / f"{currency}.html").read_text("utf-8")


def summary_of(page: str) -> dict[str, str]:
    summary = page.partition('<table class="summary">')[2].partition("</table>")[0]
    return dict(re.findall(r"<th>([^<]*)</th><td>([^<]*)</td>", summary))


@pytest.mark.parametrize(
    ("reader", "amount", "expected"),
    [
        (
            ("Europe/Madrid", "es", "EUR"),
            123_456_789,
            ("Neto", "1.086.419,74", "1 de marzo de 2026 – 31 de marzo de 2026"),
        ),
        (("Asia/Tokyo", "ja-JP", "JPY"), 100_000, ("Net", "88,000", "March 1, 2026 to March 31, 2026")),
        (("Asia/Kuwait", "ar-KW", "KWD"), -1_234_567, ("Net", "-1,234.567", "1 March 2026 to 31 March 2026")),
        (("America/New_York", "en-US", "USD"), 100_050, ("Net", "880.44", "March 1, 2026 to March 31, 2026")),
        (("Europe/Berlin", "de-DE", "EUR"), 100_050, ("Net", "880,44", "1 March 2026 to 31 March 2026")),
        (("UTC", None, "EUR"), 100_050, ("Net", "880.44", "1 March 2026 to 31 March 2026")),
        (("UTC", "../../etc", "EUR"), 100_050, ("Net", "880.44", "1 March 2026 to 31 March 2026")),
    ],
)
def test_a_page_is_written_as_its_reader_writes(
    engine: Engine, tmp_path: Path, reader: tuple[str, str | None, str], amount: int, expected: tuple[str, str, str]
) -> None:
    timezone, locale, currency = reader
    label, net, period = expected
    organization = add_organization(engine, external_ref="teatro", timezone=timezone, locale=locale, currency=currency)
    kind = {} if amount > 0 else {"kind": "FEE", "commission_rate_bps": 0, "commission_tax_bps": 0, "reason": "fine"}
    add_movement(engine, organization, amount, "2026-03-31T14:59:59", currency=currency, **kind)
    close(engine, MARCH)
    state(engine, tmp_path, default_locale="en_GB")
    page = page_of(tmp_path, currency=currency)
    assert period in page
    assert summary_of(page)[label] == net
    assert f"<dd>{timezone}</dd>" in page


def test_a_movement_is_shown_at_the_organization_s_own_time(engine: Engine, tmp_path: Path) -> None:
    organization = add_organization(engine, external_ref="teatro", timezone="Asia/Kathmandu")
    sale = add_movement(engine, organization, 1_000, "2026-03-10T23:30:15", external_ref="pay_1")
    refund = {"kind": "REFUND", "reverses_id": sale, "external_ref": "ref_1"}
    add_movement(engine, organization, -1_000, "2026-03-11T00:00", **refund)
    close(engine, MARCH)
    state(engine, tmp_path)
    rows = re.findall(r"<tr><td class=\"word when\">(.*)</tr>", page_of(tmp_path))
    cells = [re.sub(r"<[^>]+>", "|", row) for row in rows]
    assert [re.split(r"\|+", row) for row in cells] == [
        ["2026-03-11 05:15:15", "pay_1", "Sale", "10.00", ""],
        ["2026-03-11 05:45:00", "ref_1", "Refund", "pay_1", "-10.00", ""],
    ]


def test_the_summary_adds_up_from_top_to_bottom(engine: Engine, tmp_path: Path) -> None:
    organization = add_organization(engine, external_ref="teatro")
    sale = add_movement(engine, organization, 10_000, "2026-02-10T10:00")
    close(engine, FEBRUARY)
    add_movement(engine, organization, 100, "2026-02-10T10:00")
    for kind, value in (("REFUND", -3_000), ("CHARGEBACK", -2_000)):
        add_movement(engine, organization, value, "2026-03-10T10:00", kind=kind, reverses_id=sale)
    fee = {"kind": "FEE", "commission_rate_bps": 0, "commission_tax_bps": 0, "reason": "chargeback fee"}
    add_movement(engine, organization, -1_500, "2026-03-10T10:00", **fee)
    add_movement(engine, organization, 20_000, "2026-03-10T10:00")
    close(engine, MARCH)
    state(engine, tmp_path)
    page = page_of(tmp_path)
    summary = {name: round(float(value.replace(",", "")) * 100) for name, value in summary_of(page).items()}
    parts = list(summary.values())
    assert parts[:8] == [0, 20_000, -3_000, -2_000, -1_500, -1_500, -300, 88]
    assert parts[8] == sum(parts[1:8])
    assert parts[10] == parts[0] + parts[8] + parts[9]
    assert parts[12] == parts[10] + parts[11]
    assert "chargeback fee" in page
    assert "February 2026" in page


def test_nothing_that_is_typed_becomes_markup_or_loads_anything(engine: Engine, tmp_path: Path) -> None:
    hostile = '<script>alert(1)</script>"><img src=x onerror=alert(2)> {{ 7 * 7 }}'
    organization = add_organization(engine, external_ref="teatro", name=hostile)
    add_movement(
        engine, organization, -500, "2026-03-10T10:00", kind="FEE", commission_rate_bps=0, commission_tax_bps=0,
        reason=hostile, external_ref=hostile,
    )  # fmt: skip
    close(engine, MARCH)
    state(engine, tmp_path)
    page = page_of(tmp_path)
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 4
    assert "{{ 7 * 7 }}" in page
    assert """content="default-src 'none'; style-src 'unsafe-inline'">""" in page
    assert re.findall(r"<[^>]*(?:src|href)=", page) == []
    assert "url(" not in page


def test_many_movements_are_cut_short_on_the_page_and_whole_in_a_file(engine: Engine, tmp_path: Path) -> None:
    organization = add_organization(engine, external_ref="teatro", locale="es")
    execute(
        engine,
        """
        INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
            commission_tax_bps, occurred_at)
        SELECT '=pay' || n, CAST(:organization AS bigint), 'CAPTURE', 'EUR', n, 1000, 2000,
            timestamptz '2026-03-02Z' + n * interval '1 second'
        FROM generate_series(1, 1501) AS n
        """,
        organization=organization,
    )
    close(engine, MARCH)
    result = state(engine, tmp_path)
    page = page_of(tmp_path)
    assert page.count('<td class="word when">') == page_module.MOVEMENTS_SHOWN
    assert "Los primeros 500 de 1.501 movimientos; la lista completa es el archivo EUR-movements.csv" in page
    table = tmp_path / "2026-03" / "organizations" / "teatro" / "EUR-movements.csv"
    with table.open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.reader(file))
    assert len(lines) == 1502
    assert lines[0] == [
        "occurred_at", "local_time", "timezone", "reference", "kind", "is_void", "refers_to", "reason", "currency",
        "exponent", "amount",
    ]  # fmt: skip
    assert lines[1] == [
        "2026-03-02T00:00:01Z", "2026-03-02T01:00:01+01:00", "Europe/Madrid", "'=pay1", "CAPTURE", "false", "", "",
        "EUR", "2", "0.01",
    ]  # fmt: skip
    assert result.files == 4


def test_every_language_has_every_word() -> None:
    catalogues = [
        tomllib.loads(resources.files(page_module.__package__).joinpath("words", f"{name}.toml").read_text("utf-8"))
        for name in LANGUAGES
    ]
    for words in catalogues[1:]:
        assert words.keys() == catalogues[0].keys()
        assert words["kinds"].keys() == catalogues[0]["kinds"].keys()
        for key, sentence in catalogues[0].items():
            if isinstance(sentence, str):
                assert set(re.findall(r"{\w+}", words[key])) == set(re.findall(r"{\w+}", sentence)), key


@pytest.mark.parametrize(
    ("wanted", "locale"),
    [
        ("es", "es"), ("es-MX", "es_MX"), ("en_GB", "en_GB"), ("de-DE", "en_DE"), ("ja", "en_001"), ("ar_KW", "en_001"),
        ("xx", "en_GB"), ("", "en_GB"), (None, "en_GB"), ("de_DE.UTF-8", "en_DE"), ("../../x", "en_GB"),
    ],
)  # fmt: skip
def test_figures_and_sentences_are_of_one_locale(wanted: str | None, locale: str) -> None:
    assert str(reader_locale(wanted, "en_GB")) == locale


@pytest.mark.parametrize(
    ("minor_units", "exponent", "locale", "written"),
    [
        (-123_456_78, 2, "es", "-123.456,78"),
        (123_456, 2, "es", "1.234,56"),
        (88_000, 0, "en", "88,000"),
        (1, 3, "en", "0.001"),
        (-(2**63), 3, "es", "-9.223.372.036.854.775,808"),
        (123_456_789, 2, "en_IN", "12,34,567.89"),
    ],
)
def test_an_amount_keeps_every_digit(minor_units: int, exponent: int, locale: str, written: str) -> None:
    assert amount(minor_units, exponent, reader_locale(locale)) == written


def test_a_rate_has_the_decimals_that_it_has() -> None:
    assert [percentage(rate, reader_locale("en")) for rate in (0, 1000, 1250, 333)] == ["0%", "10%", "12.5%", "3.33%"]
    assert percentage(1250, reader_locale("es")) == "12,5\N{NO-BREAK SPACE}%"
