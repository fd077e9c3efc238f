"""The relay: a run whenever something is due, which delivers for a while and ends; and sending the dead again."""

import json
from dataclasses import asdict
from datetime import timedelta

import dagster as dg
from pydantic import Field

from resources import ClockResource, DatabaseResource, DeliveryResource
from schedules.windows import UNFINISHED
from ticketflow_orch.clock import parse_instant
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.installation.agreed_routes import agreeing, require_routes
from ticketflow_orch.jobs.firings import MAX_RUNTIME
from ticketflow_orch.jobs.intervals import RELAY_OUTBOX
from ticketflow_orch.outbox import admin
from ticketflow_orch.outbox.backlog import read_backlog
from ticketflow_orch.outbox.delivery.configuration import read_delivery
from ticketflow_orch.outbox.relay import Round, connections_for, drain, is_due, is_resident, longest_attempt
from ticketflow_orch.settings import settings

# Read here, so that a location with a wrong configuration of delivery does not load.
# A run begins deliveries until its budget is over; the minute is for starting, and for writing down the last ends.
_LONGEST_RUN = settings().relay_budget + longest_attempt(read_delivery(settings())) + timedelta(minutes=1)

# In seconds: an event that is due for longer is a run's too, whatever a resident relay does.
_FOR_THE_RESIDENT = 60.0


@dg.op(pool=RELAY_OUTBOX.pool, tags={"kind": "postgres"})
def relay_outbox(
    context: dg.OpExecutionContext, database: DatabaseResource, clock: ClockResource, delivery: DeliveryResource
) -> None:
    """Deliver what is due until nothing is left or the run's time is over; what is left is for the next run."""
    with (
        delivery.opened() as routes,
        database.engine(f"relay_outbox/{context.run_id}", connections_for(routes)) as engine,
    ):
        budget = settings().relay_budget.total_seconds()
        try:
            drained = drain(engine, routes, KINDS, budget=budget, now=clock.now, agreed=agreeing(routes.digest))
        except TicketflowError as error:
            raise dg.Failure(str(error)) from error
    context.add_output_metadata({name.replace("_", " "): value for name, value in asdict(drained).items()})
    if drained.unrecorded:
        raise dg.Failure(f"What became of {drained.unrecorded} events could not be recorded; see the log of this run.")


@dg.job(
    tags={MAX_RUNTIME: str(round(_LONGEST_RUN.total_seconds()))},
    description="Delivers events from the outbox to the outside world.",
)
def relay_outbox_job() -> None:
    """One run at a time is enough; two do no harm."""
    relay_outbox()


@dg.sensor(
    job_name=relay_outbox_job.name,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts the relay when an event may go, unless it is at work.",
)
def outbox_relay(
    context: dg.SensorEvaluationContext, database: DatabaseResource, delivery: DeliveryResource
) -> dg.RunRequest | dg.SkipReason:
    """A run when anything is due that a relay could deliver now."""
    walk = Round(tuple(json.loads(context.cursor))) if context.cursor else Round()
    with delivery.opened() as routes, database.engine("outbox_relay") as engine, engine.connect() as connection:
        require_routes(connection, routes.digest)
        due = is_due(connection, routes, walk)
        taken_care_of = due and is_resident(connection) and read_backlog(connection).oldest_age < _FOR_THE_RESIDENT
    context.update_cursor(json.dumps(walk.after))
    if not due:
        return dg.SkipReason("No event may go.")
    if taken_care_of:
        return dg.SkipReason("A resident relay is delivering.")
    runs = context.instance.get_runs(dg.RunsFilter(job_name=relay_outbox_job.name, statuses=UNFINISHED), limit=1)
    if runs:
        return dg.SkipReason(f"Run {runs[0].run_id} is delivering.")
    return dg.RunRequest()


class RedriveConfig(dg.Config):
    """Which dead events to send again: all that is given must hold, and something must be given."""

    event_ids: list[str] = Field([], description="Their ids.")
    event_type: str | None = Field(None, description="Their type.")
    destination: str | None = Field(None, description="Where they go.")
    since: str | None = Field(None, description="Died at or after this instant; ISO 8601 with an offset.")


@dg.op(tags={"kind": "postgres"})
def redrive_outbox(
    context: dg.OpExecutionContext, config: RedriveConfig, database: DatabaseResource, delivery: DeliveryResource
) -> None:
    """Give dead events a new budget of attempts, under the same ids, with the same bytes."""
    with (
        delivery.opened() as routes,
        database.engine(f"redrive_outbox/{context.run_id}") as engine,
    ):
        try:
            with transaction(engine) as connection:
                choice = admin.Choice(
                    [admin.parse_event_id(one) for one in config.event_ids],
                    admin.chosen_types(connection, routes, config.event_type, config.destination),
                    parse_instant(config.since) if config.since else None,
                )
                redriven = admin.redrive(connection, choice)
        except TicketflowError as error:
            raise dg.Failure(str(error)) from error
    context.add_output_metadata({"redriven": redriven})


@dg.job(description="Sends dead events again.")
def redrive_outbox_job() -> None:
    """By hand, after what killed them is fixed."""
    redrive_outbox()
