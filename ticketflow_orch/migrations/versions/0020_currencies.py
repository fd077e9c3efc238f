"""Currencies come and go: each with its days in use, those that were withdrawn beside them, and an organization's own.

Codes and exponents are those of ISO 4217: list one but for what has no minor unit (metals, units of account, codes for
tests), and of list three what was money after 1998. Days are those of CLDR 48 as Babel 2.19 carries it, where the last
one of a currency that was replaced is the last on which it was taken beside the new one; a test compares. Neither says
since when a fund or a redenominated unit is in use: its first day is empty.
"""

from collections.abc import Mapping

from alembic import op
from sqlalchemy import text

from ticketflow_orch.migrations.online import build_index, with_short_lock

revision = "0020"
down_revision = "0019"

NEW = {
    "BOV": 2, "CHE": 2, "CHW": 2, "CLF": 4, "COU": 2, "MXV": 2, "USN": 2, "UYW": 4, "XAD": 2, "XCG": 2, "ZWG": 2,
}  # fmt: skip
# What was withdrawn had two decimals, but for these.
WITHDRAWN_WITHOUT_DECIMALS = "ADP BEF BYB BYR ESP GRD ITL LUF MGF PTE TPE TRL"
FIRST_DAYS = """
    AED 1973-05-19  AFN 2002-10-07  ALL 1965-08-16  AMD 1993-11-22  AOA 1999-12-13  ARS 1992-01-01  AUD 1966-02-14
    AWG 1986-01-01  AZN 2006-01-01  BAM 1995-01-01  BBD 1973-12-03  BDT 1972-01-01  BHD 1965-10-16  BIF 1964-05-19
    BMD 1970-02-06  BND 1967-06-12  BOB 1987-01-01  BRL 1994-07-01  BSD 1966-05-25  BTN 1974-04-16  BWP 1976-08-23
    BYN 2016-07-01  BZD 1974-01-01  CAD 1858-01-01  CDF 1998-07-01  CHF 1799-03-17  CLP 1975-09-29  CNY 1953-03-01
    COP 1905-01-01  CRC 1896-10-26  CUP 1859-01-01  CVE 1914-01-01  CZK 1993-01-01  DJF 1977-06-27  DKK 1873-05-27
    DOP 1947-10-01  DZD 1964-04-01  EGP 1885-11-14  ERN 1997-11-08  ETB 1976-09-15  EUR 1999-01-01  FJD 1969-01-13
    FKP 1901-01-01  GBP 1694-07-27  GEL 1995-09-23  GHS 2007-07-03  GIP 1713-01-01  GMD 1971-07-01  GNF 1986-01-06
    GTQ 1925-05-27  GYD 1966-05-26  HKD 1895-02-02  HNL 1926-04-03  HTG 1872-08-26  HUF 1946-07-23  IDR 1965-12-13
    ILS 1985-09-04  INR 1835-08-17  IQD 1931-04-19  IRR 1932-05-13  ISK 1981-01-01  JMD 1969-09-08  JOD 1950-07-01
    JPY 1871-06-01  KES 1966-09-14  KGS 1993-05-10  KHR 1980-03-20  KMF 1975-01-01  KPW 1959-04-17  KRW 1962-06-10
    KWD 1961-04-01  KYD 1971-01-01  KZT 1993-11-05  LAK 1979-12-10  LBP 1948-02-02  LKR 1978-05-22  LRD 1944-01-01
    LSL 1980-01-22  LYD 1971-09-01  MAD 1959-10-17  MDL 1993-11-29  MGA 1983-11-01  MKD 1993-05-20  MMK 1989-06-18
    MNT 1915-03-01  MOP 1901-01-01  MRU 2018-01-01  MUR 1934-04-01  MVR 1981-07-01  MWK 1971-02-15  MXN 1993-01-01
    MYR 1963-09-16  MZN 2006-07-01  NAD 1993-01-01  NGN 1973-01-01  NIO 1991-04-30  NOK 1905-06-07  NPR 1933-01-01
    NZD 1967-07-10  OMR 1972-11-11  PAB 1903-11-04  PEN 1991-07-01  PGK 1975-09-16  PHP 1946-07-04  PKR 1948-04-01
    PLN 1995-01-01  PYG 1943-11-01  QAR 1973-05-19  RON 2005-07-01  RSD 2006-10-25  RUB 1999-01-01  RWF 1964-05-19
    SAR 1952-10-22  SBD 1977-10-24  SCR 1903-11-01  SDG 2007-01-10  SEK 1873-05-27  SGD 1967-06-12  SHP 1917-02-15
    SLE 2022-07-01  SOS 1960-07-01  SRD 2004-01-01  SSP 2011-07-18  STN 2018-01-01  SVC 1919-11-11  SYP 1948-01-01
    SZL 1974-09-06  THB 1928-04-15  TJS 2000-10-26  TMT 2009-01-01  TND 1958-11-01  TOP 1966-02-14  TRY 2005-01-01
    TTD 1964-01-01  TWD 1949-06-15  TZS 1966-06-14  UAH 1996-09-02  UGX 1987-05-15  USD 1792-01-01  UYU 1993-03-01
    UZS 1994-07-01  VES 2018-08-20  VND 1985-09-14  VUV 1981-01-01  WST 1967-07-10  XAD 2025-05-12  XAF 1973-04-01
    XCD 1965-10-06  XCG 2025-03-31  XOF 1958-11-24  XPF 1945-12-26  YER 1990-05-22  ZAR 1961-02-14  ZMW 2013-01-01
    ZWG 2024-06-25
"""
FIRST_AND_LAST_DAYS = """
    ADP 1936-01-01 2001-12-31  AFA 1927-03-14 2002-12-31  ANG 1940-05-10 2025-06-30  AON 1990-09-25 2000-02-01
    AOR 1995-07-01 2000-02-01  ATS 1947-12-04 2002-02-28  AZM 1993-11-22 2006-12-31  BEF 1831-02-07 2002-02-28
    BGL 1962-01-01 1999-07-05  BGN 1999-07-05 2026-01-31  BYB 1994-08-01 2000-12-31  BYR 2000-01-01 2017-01-01
    CSD 2002-05-15 2006-10-25  CUC 1994-01-01 2021-06-01  CYP 1914-09-10 2008-01-31  DEM 1948-06-20 2002-05-15
    ECS 1884-04-01 2000-10-02  EEK 1992-06-21 2010-12-31  ESP 1800-01-01 2002-02-28  FIM 1963-01-01 2002-02-28
    FRF 1959-01-01 2002-02-17  GHC 1979-03-09 2007-12-31  GRD 1954-05-01 2002-02-28  HRK 1994-05-30 2023-01-14
    IEP 1922-01-01 2002-02-09  ITL 1862-08-24 2002-02-28  LTL 1993-06-25 2014-12-31  LUF 1944-09-04 2002-02-28
    LVL 1993-06-28 2013-12-31  MGF 1963-07-01 2004-12-31  MRO 1973-06-29 2018-06-30  MTL 1968-06-07 2008-01-31
    MZM 1980-06-16 2006-12-31  NLG 1813-01-01 2002-02-28  PTE 1911-05-22 2002-02-28  ROL 1952-01-28 2006-12-31
    SDD 1992-06-08 2007-06-30  SIT 1992-10-07 2007-01-14  SKK 1992-12-31 2009-01-01  SLL 1964-08-04 2023-12-31
    SRG 1940-05-10 2003-12-31  STD 1977-09-08 2017-12-31  TJR 1995-05-10 2000-10-25  TMM 1993-11-01 2009-01-01
    TPE 1959-01-02 2002-05-20  TRL 1922-11-01 2005-12-31  USS - 2014-03-01  VEB 1871-05-11 2008-06-30
    VEF 2008-01-01 2018-08-20  YUM 1994-01-24 2002-05-15  ZMK 1968-01-16 2013-01-01  ZWD 1980-04-18 2008-08-01
    ZWL 2009-02-02 2024-08-31  ZWR 2008-08-01 2009-02-02
"""

# One transaction, and harmless to repeat. What somebody has entered already keeps its exponent and its minimum.
TABLES = """
ALTER TABLE currency
    ADD COLUMN IF NOT EXISTS first_day date,
    ADD COLUMN IF NOT EXISTS last_day date;
ALTER TABLE currency
    DROP CONSTRAINT IF EXISTS currency_days_check,
    ADD CONSTRAINT currency_days_check CHECK (last_day >= first_day);
CREATE TABLE IF NOT EXISTS organization_currency (
    id bigint GENERATED ALWAYS AS IDENTITY,
    organization_id bigint NOT NULL REFERENCES organization,
    from_month month_start NOT NULL,
    currency char(3) NOT NULL REFERENCES currency,
    decided_by text NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (organization_id, from_month, id)
);
CREATE OR REPLACE TRIGGER organization_currency_append_only BEFORE UPDATE OR DELETE OR TRUNCATE
    ON organization_currency FOR EACH STATEMENT
    EXECUTE FUNCTION refuse('organization_currency is append-only: a later row about the same month counts');
CREATE OR REPLACE TRIGGER organization_currency_not_settled AFTER INSERT ON organization_currency
    REFERENCING NEW TABLE AS decided FOR EACH STATEMENT EXECUTE FUNCTION organization_currency_guard()
"""

# Of a month that is settled the zero rows are posted, in the currency that was in force.
GUARD = """
CREATE OR REPLACE FUNCTION organization_currency_guard() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    refused record;
BEGIN
    SELECT decided.from_month, period.month INTO refused
    FROM decided JOIN settlement_period AS period ON period.month >= decided.from_month
    WHERE period.state <> 'OPEN' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'no currency changes from % on, because % is settled',
            to_char(refused.from_month, 'YYYY-MM'), to_char(refused.month, 'YYYY-MM')
            USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$
"""

CURRENCIES = """
INSERT INTO currency (code, exponent, first_day, last_day)
SELECT * FROM unnest(%s::char(3)[], %s::smallint[], %s::date[], %s::date[])
ON CONFLICT (code) DO UPDATE SET first_day = excluded.first_day, last_day = excluded.last_day
"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        connection.execute(text(GUARD))
        with_short_lock(connection, TABLES, table="currency")
        known = connection.execute(text("SELECT code, exponent FROM currency")).all()
        rows = currencies({row.code: row.exponent for row in known})
        connection.exec_driver_sql(CURRENCIES, tuple(list(column) for column in zip(*rows, strict=True)))
        # Who has a currency that was withdrawn is asked for once a minute.
        build_index(connection, "organization_by_currency_idx", "organization", ("currency",))


def currencies(known: Mapping[str, int]) -> list[tuple[str, int, str | None, str | None]]:
    """Code, exponent, first and last day of every currency; exponents that are `known` stay as they are."""
    without = dict.fromkeys(WITHDRAWN_WITHOUT_DECIMALS.split(), 0)
    days: dict[str, tuple[str | None, str | None]] = dict.fromkeys(NEW, (None, None))
    in_use = iter(FIRST_DAYS.split())
    days |= {code: (first, None) for code, first in zip(in_use, in_use, strict=True)}
    over = iter(FIRST_AND_LAST_DAYS.split())
    days |= {code: (None if first == "-" else first, last) for code, first, last in zip(over, over, over, strict=True)}
    exponents = dict.fromkeys(days, 2) | NEW | without | dict(known)
    return [(code, exponents[code], *of_code) for code, of_code in sorted(days.items())]
