"""What can be configured about operations is refused, when it is wrong, in one sentence that names it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.settings import read_settings


@pytest.mark.parametrize(
    ("given", "length"), [("1800", timedelta(minutes=30)), ("PT45M", timedelta(minutes=45)), ("P1D", timedelta(days=1))]
)
def test_a_length_of_time_is_iso_8601_or_seconds(
    monkeypatch: pytest.MonkeyPatch, given: str, length: timedelta
) -> None:
    monkeypatch.setenv("TICKETFLOW_PAYMENT_GRACE", given)
    assert read_settings().payment_grace == length


def test_kinds_of_reminders_are_a_json_object_of_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings().reminder_kinds == {"24h": timedelta(hours=24)}
    monkeypatch.setenv("TICKETFLOW_REMINDER_KINDS", '{"2h": "PT2H", "week": 604800}')
    assert read_settings().reminder_kinds == {"2h": timedelta(hours=2), "week": timedelta(days=7)}


@pytest.mark.parametrize(
    ("variable", "value", "fault"),
    [
        ("PAYMENT_GRACE", "30:00", "='30:00' is refused: write a length of time in ISO 8601, such as PT30M or P1D"),
        ("CLOSING_GRACE", "-5", "='-5' is refused: Input should be greater than or equal to"),
        ("EXPIRY_DELAY", "soon", "='soon' is refused: write a length of time"),
        ("REMINDER_KINDS", "24h", "='24h' is refused: write a JSON object of kinds"),
        ("REMINDER_KINDS", "{}", "='{}' is refused: write a JSON object of kinds"),
        ("REMINDER_KINDS", '{"a:b": 60}', "='a:b' is refused: "),
        ("REMINDER_KINDS", '{"now": 0}', "=0 is refused: Input should be greater than"),
        ("MAIL_FROM", "2026-01-01", "='2026-01-01' is refused: Input should have timezone info"),
    ],
)
def test_what_is_wrong_is_named_with_its_variable_and_the_fix(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, fault: str
) -> None:
    monkeypatch.setenv(f"TICKETFLOW_{variable}", value)
    with pytest.raises(TicketflowError) as refused:
        read_settings()
    assert str(refused.value).startswith(f"TICKETFLOW_{variable}{fault}")
    assert "\n" not in str(refused.value)
