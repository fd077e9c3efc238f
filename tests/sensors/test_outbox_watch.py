"""What the catalog shows of the outbox, and when its check warns."""

from __future__ import annotations

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from assets import outbox, outbox_is_delivered
from resources import DatabaseResource
from sensors import outbox_watch
from tests.outbox.relay.world import add, change
from tests.support.decidable import put
from tests.support.homes import dagster_instance


@pytest.fixture
def database(url: URL) -> DatabaseResource:
    return DatabaseResource(url=url.render_as_string(hide_password=False))


def look(database: DatabaseResource) -> tuple[dict[str, object], dg.AssetCheckEvaluation]:
    """The figures observed and what the check says, as Dagster would store them."""
    with dagster_instance() as instance:
        with dg.build_sensor_context(instance=instance, resources={"database": database}) as context:
            data = outbox_watch.evaluate_tick(context)
        observation, evaluation = data.asset_events
        for one in (observation, evaluation):
            instance.report_runless_asset_event(one)
        [stored] = instance.fetch_observations(outbox.key, limit=1).records
        assert stored.asset_observation is not None
    assert isinstance(evaluation, dg.AssetCheckEvaluation)
    return {name: value.value for name, value in stored.asset_observation.metadata.items()}, evaluation


def test_an_empty_outbox_is_well(engine: Engine, database: DatabaseResource) -> None:
    figures, evaluation = look(database)
    assert figures == {"waiting": 0, "oldest due (seconds)": 0.0, "dead": 0, "in doubt": 0, "held": 0}
    assert (evaluation.passed, evaluation.description) == (True, "All is on its way.")


def test_what_waits_is_counted_and_what_waits_too_long_or_for_a_person_is_warned_of(
    engine: Engine, database: DatabaseResource
) -> None:
    for name, state in (("a", "DEAD"), ("b", "IN_DOUBT"), ("c", "HELD")):
        put(engine, name, state)
    add(engine, "late")
    change(engine, "late", "available_at = clock_timestamp() - interval '16 minutes'")
    figures, evaluation = look(database)
    assert {name: figures[name] for name in ("waiting", "dead", "in doubt", "held")} == {
        "waiting": 4, "dead": 1, "in doubt": 1, "held": 1,
    }  # fmt: skip
    assert isinstance(figures["oldest due (seconds)"], float)
    assert figures["oldest due (seconds)"] >= 960
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    for words in ("has been due for 16 min", "1 event DEAD", "1 event IN_DOUBT"):
        assert words in (evaluation.description or "")


def test_the_check_can_be_run_by_hand(engine: Engine, database: DatabaseResource) -> None:
    put(engine, "a", "DEAD")
    result = outbox_is_delivered(database=database)
    assert isinstance(result, dg.AssetCheckResult)
    assert not result.passed
