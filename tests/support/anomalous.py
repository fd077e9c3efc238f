"""Movements that cannot all be right, made in a line each, and what is found of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

from tests.support.folders import Rows, Story, story
from tests.support.rows import add_event, add_movement, add_reservation
from ticketflow_orch.settlement.anomalies import Anomalies, Anomaly, read_anomalies

# 51.40, and the instant of most sales.
PRICE = 5_140
SOLD = "2026-03-10T10:05"


def sale(engine: Engine, organization: int, amount: int = PRICE, at: str = SOLD, **values: Any) -> int:
    """A capture of 51.40."""
    return add_movement(engine, organization, amount, at, **values)


def back(engine: Engine, organization: int, kind: str, target: int, amount: int, **values: Any) -> int:
    """A refund, a chargeback or the reversal of one, of `target`; unless said otherwise when most are sold."""
    at = values.pop("at", SOLD)
    return add_movement(engine, organization, amount, at, kind=kind, reverses_id=target, **values)


def refund(engine: Engine, organization: int, target: int, amount: int = -PRICE, **values: Any) -> int:
    return back(engine, organization, "REFUND", target, amount, **values)


def chargeback(engine: Engine, organization: int, target: int, amount: int = -PRICE, **values: Any) -> int:
    return back(engine, organization, "CHARGEBACK", target, amount, **values)


def won(engine: Engine, organization: int, target: int, amount: int = PRICE, **values: Any) -> int:
    return back(engine, organization, "CHARGEBACK_REVERSAL", target, amount, **values)


def won_twice(engine: Engine, organization: int, amount: int = PRICE, at: str = SOLD) -> int:
    """A sale whose chargeback was won twice; the organization keeps its price twice. Returns the chargeback's id."""
    charged = chargeback(engine, organization, sale(engine, organization, amount, at), -amount, at=at)
    for _ in range(2):
        won(engine, organization, charged, amount, at=at)
    return charged


def reserve(engine: Engine, organization: int) -> int:
    return add_reservation(engine, add_event(engine, organization))


def read(engine: Engine, **asked: Any) -> Anomalies:
    with engine.connect() as connection:
        return read_anomalies(connection, **asked)


def found(engine: Engine, **asked: Any) -> list[tuple[str, str, int]]:
    """What is open, in the order of recording: why, the movement, and how much of it is in question."""
    return [(str(one.why), one.reference, one.questionable) for one in read(engine, **asked).listed]


def only(engine: Engine) -> Anomaly:
    """The one thing that is open."""
    [one] = read(engine).listed
    return one


def reversals() -> Story:
    """Halls of the good story that differ in what came back; each sold once for 50.00 in May 2026."""
    told = story()
    organization, sold = told["organizations"][0], told["money_movements"][1] | {"reservation_ref": ""}
    halls = [organization | {"external_ref": f"h{number}", "name": f"Hall {number}"} for number in range(1, 6)]

    def movement(number: int, name: str, kind: str, amount: int, reverses: str = "", **cells: str) -> dict[str, str]:
        return sold | {
            "external_ref": f"{name}{number}", "organization_ref": f"h{number}", "kind": kind, "amount": str(amount),
            "reverses_ref": reverses, **cells,
        }  # fmt: skip

    rows: Rows = [movement(number, "sold", "CAPTURE", 5_000) for number in range(1, 6)]
    rows += [
        movement(1, "back", "REFUND", -20_000, "sold1"),
        movement(2, "back", "REFUND", -5_000, "sold2"),
        movement(2, "charged", "CHARGEBACK", -5_000, "sold2"),
        movement(3, "charged", "CHARGEBACK", -5_000, "sold3"),
        movement(3, "won", "CHARGEBACK_REVERSAL", 5_000, "charged3"),
        movement(3, "won-again", "CHARGEBACK_REVERSAL", 5_000, "charged3"),
        movement(4, "void", "CAPTURE", -5_000, "sold4", is_void="true"),
        movement(4, "back", "REFUND", -5_000, "sold4"),
        movement(5, "back", "REFUND", -5_000, "sold5", occurred_at="2026-02-10T10:05:00Z"),
    ]
    return {"organizations": halls, "money_movements": rows}
