"""The manifests are ones that the API takes, run as nobody, hold no secret, and name what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.helm_chart import MANIFESTS, image, values
from ticketflow_orch import cli

FILES = sorted(path for path in MANIFESTS.glob("*.yaml") if path.name != "values.yaml")
VERSION = "1.30"


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text("utf-8")))


ALL = [one for file in FILES for one in documents(file)]


def named(one: dict[str, Any]) -> str:
    return f"{one['kind']}-{one['metadata']['name']}"


def pod(one: dict[str, Any]) -> dict[str, Any] | None:
    spec = one.get("spec", {})
    spec = spec.get("jobTemplate", {"spec": spec})["spec"]
    found: dict[str, Any] | None = spec.get("template", {}).get("spec")
    return found


PODS = [one for one in ALL if pod(one) is not None]


@pytest.mark.parametrize("one", ALL, ids=named)
def test_the_api_takes_every_manifest(one: dict[str, Any]) -> None:
    kubernetes_validate.validate(one, VERSION, strict=True)


def test_a_misspelt_key_is_noticed() -> None:
    wrong = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}, "automountToken": False}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


@pytest.mark.parametrize("one", PODS, ids=named)
def test_every_pod_runs_as_nobody_on_a_root_that_it_cannot_write(one: dict[str, Any]) -> None:
    spec = pod(one)
    assert spec is not None
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= set(container["resources"])
        assert container["image"] == image(values())


@pytest.mark.parametrize("one", PODS, ids=named)
def test_every_pod_runs_a_command_that_there_is(one: dict[str, Any]) -> None:
    spec = pod(one)
    assert spec is not None
    words = spec["containers"][0]["command"]
    assert words[0] == "ticketflow"
    found: Any = cli.command()
    for word in words[1:]:
        if word.startswith("-"):
            assert any(word in option.opts for option in found.params), words
        elif hasattr(found, "commands"):
            found = found.commands[word]


def test_what_is_named_is_there() -> None:
    made = {(one["kind"], one["metadata"]["name"]) for one in ALL}
    for one in PODS:
        spec = pod(one)
        assert spec is not None
        assert ("ServiceAccount", spec["serviceAccountName"]) in made
        for source in spec["containers"][0]["envFrom"]:
            assert ("Secret", source["secretRef"]["name"]) in made
        for volume in spec["volumes"]:
            assert "secret" not in volume or ("Secret", volume["secret"]["secretName"]) in made
    given = values()
    assert ("Secret", given["global"]["postgresqlSecretName"]) in made
    assert ("ServiceAccount", given["global"]["serviceAccountName"]) in made
    launcher = given["runLauncher"]["config"]["customRunLauncher"]["config"]
    assert ("ServiceAccount", launcher["service_account_name"]) in made


def test_the_example_of_the_secrets_has_no_secret() -> None:
    secrets = [one for one in ALL if one["kind"] == "Secret"]
    assert secrets
    assert {value for one in secrets for value in one["stringData"].values()} == {""}


def test_the_owner_of_the_tables_is_known_to_the_migration_alone() -> None:
    having = [named(one) for one in PODS if "ticketflow-owner" in str(one)]
    assert having == ["Job-ticketflow-migrate"]
    assert "ticketflow-owner" not in (MANIFESTS / "values.yaml").read_text("utf-8")


def test_everything_is_in_the_namespace_that_runs_are_launched_in() -> None:
    launcher = values()["runLauncher"]["config"]["customRunLauncher"]["config"]
    assert {one["metadata"]["namespace"] for one in ALL} == {launcher["job_namespace"]}
