"""The asset that answers a question: why one organization's month came to what it came to. Its job asks it."""

from typing import Any

import dagster as dg
from pydantic import Field

from assets.tables import table
from resources import DatabaseResource
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.months import Month
from ticketflow_orch.reports import explanation_columns as columns
from ticketflow_orch.reports.explain import Explanation, explain, last_settled

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
        metadata["balance"] = table(columns.BALANCES, answer.balances)
    metadata["lines by rate"] = table(columns.LINES, answer.lines)
    metadata["ledger entries"] = table(columns.entries(answer.business_timezone), answer.entries)
    shown = answer.movements[-MOVEMENTS_SHOWN:]
    metadata["movements"] = table(columns.movements(answer.business_timezone), shown)
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
