"""What the catalog says of everything in it: whose it is, what it is, what its columns and its checks mean."""

from __future__ import annotations

import dagster as dg
import pytest

from ticketflow_orch.definitions import build_definitions

DEFINITIONS = build_definitions()
ASSETS = list(DEFINITIONS.resolve_all_asset_specs())
MONTHLY = [asset for asset in ASSETS if asset.partitions_def is not None]


def name(asset: dg.AssetSpec) -> str:
    return asset.key.to_user_string()


@pytest.mark.parametrize("asset", ASSETS, ids=name)
def test_every_asset_says_whose_and_what_it_is(asset: dg.AssetSpec) -> None:
    assert asset.owners
    assert asset.kinds
    assert asset.group_name in {"settlement", "delivery", "overview"}
    assert asset.tags["domain"] in {"settlement", "delivery"}
    assert asset.description is not None
    assert len(asset.description.splitlines()[0]) > len(name(asset))


@pytest.mark.parametrize("asset", MONTHLY, ids=name)
def test_every_monthly_asset_explains_its_columns(asset: dg.AssetSpec) -> None:
    columns = asset.metadata["dagster/column_schema"].columns
    assert columns
    assert [column.name for column in columns if not (column.type and column.description)] == []


def test_the_chain_of_a_month_is_the_one_that_people_know() -> None:
    chain = {name(asset): {dep.asset_key.to_user_string() for dep in asset.deps} for asset in MONTHLY}
    assert chain == {
        "monthly_settlement": set(),
        "closed_books": {"monthly_settlement"},
        "payouts": {"closed_books"},
        "settlement_statements": {"closed_books"},
    }


def test_every_check_and_every_job_says_what_it_is_for() -> None:
    repository = DEFINITIONS.get_repository_def()
    graph = repository.asset_graph
    assert [check.name for check in graph.asset_check_keys if not graph.get(check).description] == []
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    assert [job.name for job in jobs if not job.description] == []
