"""The asset that answers a question: why one organization's month came to what it came to. Its job asks it."""

from collections.abc import Iterable, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from resources import DatabaseResource
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month, to_the_minute
from ticketflow_orch.reports.explain import Balance, Entry, Explanation, Line, Movement, explain, last_settled

# A big organization moves money more often than anybody reads; `ticketflow explain` prints them all.
MOVEMENTS_SHOWN = 500


class ExplanationConfig(dg.Config):
    """The question."""

    organization: str = Field(description="The organization's reference in the application, such as hall-7.")
    month: str = Field("", description="YYYY-MM, such as 2026-03; empty: the last month that is settled.")


@dg.asset(
    group_name="overview",
    owners=["team:finance"],
    kinds={"postgres"},
    tags={"domain": "settlement"},
)
def explanation(config: ExplanationConfig, database: DatabaseResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
    """Why an organization's month came to what it came to: lines by rate, movements, ledger entries, balance.

    Asked anew by each run: `explain_job`, or Materialize with a configuration. Reads only.
    """
    with database.engine("explanation", connections=1) as engine, engine.connect() as connection:
        try:
            month = Month.parse(config.month) if config.month else last_settled(connection)
            answer = explain(connection, config.organization, month)
        except TicketflowError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
    return dg.MaterializeResult(metadata=explanation_metadata(answer))


explain_job = dg.define_asset_job(
    "explain_job",
    selection=dg.AssetSelection.assets(explanation),
    # What the launchpad opens with, to be filled in.
    config={"ops": {"explanation": {"config": {"organization": "", "month": ""}}}},
    tags={"dagster/max_runtime": "120"},
    description="Explains one organization's month; the answer is on the page of the asset `explanation`.",
)


def explanation_metadata(answer: Explanation) -> dict[str, Any]:
    """The metadata of an answer, from what it came to back to why."""
    # Plain text: a run's page shows Markdown behind a link only.
    metadata: dict[str, Any] = {"summary": _summary(answer)}
    if answer.balances:
        metadata["balance"] = _table(_BALANCE, map(_balance_cells, answer.balances))
    here = answer.business_timezone
    metadata["lines by rate"] = _table(_LINE, map(_line_cells, answer.lines))
    entries = (_entry_cells(one, here) for one in answer.entries)
    metadata["ledger entries"] = _table((*_ENTRY, f"posted ({here})"), entries)
    shown = answer.movements[-MOVEMENTS_SHOWN:]
    metadata["movements"] = _table((f"occurred ({here})", *_MOVEMENT), (_movement_cells(one, here) for one in shown))
    if len(answer.movements) > MOVEMENTS_SHOWN:
        metadata["movements not shown"] = len(answer.movements) - MOVEMENTS_SHOWN
    return metadata | {
        "organization": answer.external_ref,
        "month": str(answer.month),
        "time zone": answer.timezone,
        "starts at": dg.MetadataValue.timestamp(answer.window.starts_at),
        "ends before": dg.MetadataValue.timestamp(answer.window.ends_at),
        **({"cutoff": dg.MetadataValue.timestamp(answer.cutoff)} if answer.cutoff is not None else {}),
    }


def _summary(answer: Explanation) -> str:
    late = sum(movement.late for movement in answer.movements)
    sentences = [
        f"{answer.name} ({answer.external_ref}), {answer.month}, {answer.state.lower()}: "
        f"{counted(len(answer.movements), 'movement')}."
    ]
    if late and answer.cutoff is not None:
        sentences.append(f"Late and not posted yet: {late:,} of them.")
    if answer.not_paid_here:
        sentences.append(answer.not_paid_here)
    if answer.before_the_books is not None:
        sentences.append(answer.before_the_books)
    if answer.parked:
        sentences.append(f"Parked: {answer.parked}.")
    sentences += [f"Looks wrong: {one.currency} {one.what}." for one in answer.anomalies if one.accepted_by is None]
    return " ".join(sentences)


_AMOUNTS = ("captures", "refunds", "chargebacks", "fees", "commission", "commission_tax")
_BALANCE_AMOUNTS = ("opening", "net", "returned", "settled_elsewhere", "due", "payable", "closing")
# What people ask first comes first: the page cuts wide tables off at the right.
_BALANCE = ("currency", *(name.replace("_", " ") for name in _BALANCE_AMOUNTS), "payout")
_LINE = ("currency", "rate", "tax", *(name.replace("_", " ") for name in _AMOUNTS))
_ENTRY = ("posted in", "currency", "net", "reason", *(name.replace("_", " ") for name in _AMOUNTS))
_MOVEMENT = ("kind", "amount", "currency", "rate", "reference", "reverses", "late")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> dg.TableMetadataValue:
    records = [dg.TableRecord(dict(zip(columns, row, strict=True))) for row in rows]
    return dg.MetadataValue.table(records, dg.TableSchema(columns=[dg.TableColumn(name) for name in columns]))


def _written(row: Balance | Line | Entry, names: Sequence[str]) -> Iterable[str]:
    return (written_out(getattr(row, name), row.exponent) for name in names)


def _percent(basis_points: int) -> str:
    return f"{basis_points / 100:g} %"


def _balance_cells(balance: Balance) -> Sequence[str]:
    paid = (balance.paid or "").lower().replace("_", " ")
    return balance.currency, *_written(balance, _BALANCE_AMOUNTS), paid


def _line_cells(line: Line) -> Sequence[str]:
    rates = _percent(line.commission_rate_bps), _percent(line.commission_tax_bps)
    return line.currency, *rates, *_written(line, _AMOUNTS)


def _entry_cells(entry: Entry, here: str) -> Sequence[str]:
    return (
        str(entry.month), entry.currency, *_written(entry, ("net",)), entry.reason or "settlement",
        *_written(entry, _AMOUNTS), to_the_minute(entry.posted_at, here),
    )  # fmt: skip


def _movement_cells(movement: Movement, here: str) -> Sequence[str]:
    return (
        to_the_minute(movement.occurred_at, here),
        f"{movement.kind.lower().replace('_', ' ')}{' (void)' if movement.is_void else ''}",
        written_out(movement.amount, movement.exponent), movement.currency, _percent(movement.commission_rate_bps),
        movement.external_ref, movement.reverses or "", "late" if movement.late else "",
    )  # fmt: skip
