"""What the compose file says of every service, whether there is anything here to run it or not."""

from __future__ import annotations

import pytest

from tests.containers import compose

DOCUMENT = compose.read({"TICKETFLOW_SECRETS": "/secrets", "TICKETFLOW_DELIVERY": "/delivery.toml"})
SERVICES = sorted(DOCUMENT["services"])


def test_ports_are_those_of_this_host_alone() -> None:
    ports = [port for service in DOCUMENT["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_bounded_read_only_and_without_powers(name: str) -> None:
    service = DOCUMENT["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["mem_limit"]
    assert service["logging"]["options"]["max-size"]
    assert service["stop_grace_period"]
    # What is done once is not done again, nor asked whether it lives.
    assert (service["restart"] == "no") == (name == "migrate") == ("healthcheck" not in service)


@pytest.mark.parametrize("name", SERVICES)
def test_every_word_of_a_service_is_known_to_what_runs_it(name: str) -> None:
    assert compose.options(DOCUMENT, name, "any")


def test_secrets_are_files_and_no_value_is_in_an_environment() -> None:
    for service in DOCUMENT["services"].values():
        named = {name: value for name, value in service["environment"].items() if "URL" in name or "PASSWORD" in name}
        assert named
        assert all(name.endswith("_FILE") and value.startswith("/run/secrets/") for name, value in named.items())


@pytest.mark.parametrize("missing", ["the folder of the secrets", "the file of destinations and routes"])
def test_what_nobody_named_is_asked_for(missing: str) -> None:
    named = {"TICKETFLOW_SECRETS": "/secrets"} if "routes" in missing else {"TICKETFLOW_DELIVERY": "/delivery.toml"}
    with pytest.raises(KeyError, match=missing):
        compose.read(named)
