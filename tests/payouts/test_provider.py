"""The provider of the tests behaves like real ones: otherwise nothing that it judges would be proved."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Callable
from http.client import RemoteDisconnected
from threading import Thread

import pytest

from tests.support.provider import Provider
from tests.support.sessions import becomes

ORDER = {"reference": "r-1", "organization": "choir", "currency": "EUR", "amount": 88_000}


@pytest.fixture
def provider(start_provider: Callable[..., Provider]) -> Provider:
    return start_provider()


def test_the_same_key_and_body_get_the_first_answer_again(provider: Provider) -> None:
    status, first = provider.pay("k", **ORDER)
    assert (status, first["status"], first["reference"]) == (200, "confirmed", "r-1")
    assert provider.pay("k", **ORDER) == (200, first)
    assert provider.look_up("r-1") == (200, first)
    assert provider.paid == [("choir", "EUR", 88_000)]


def test_the_same_key_with_another_body_is_refused(provider: Provider) -> None:
    provider.pay("k", **ORDER)
    assert provider.pay("k", **ORDER | {"amount": 1})[0] == 422
    assert provider.paid == [("choir", "EUR", 88_000)]


def test_a_payment_in_progress_is_neither_begun_again_nor_unknown(provider: Provider) -> None:
    provider.behave(slow=1, pause=60)
    slow = Thread(target=provider.pay, args=("k",), kwargs=ORDER)
    slow.start()
    assert becomes(lambda: provider.look_up("r-1")[0] == 409)
    assert provider.pay("k", **ORDER)[0] == 409
    provider.behave()
    slow.join()
    assert provider.pay("k", **ORDER)[0] == 200
    assert len(provider.entries) == 1


@pytest.mark.parametrize(
    ("behaviour", "made"), [({"lose": 1}, 1), ({"drop": 1}, 0)], ids=["after it acted", "before it acted"]
)
def test_answers_are_lost(provider: Provider, behaviour: dict[str, float], made: int) -> None:
    provider.behave(**behaviour)
    with pytest.raises((RemoteDisconnected, urllib.error.URLError, ConnectionError)):
        provider.pay("k", **ORDER)
    assert len(provider.paid) == made
    provider.behave()
    assert provider.pay("k", **ORDER)[0] == 200
    assert len(provider.paid) == 1


def test_a_key_that_was_forgotten_pays_again(start_provider: Callable[..., Provider]) -> None:
    provider = start_provider(forget_after=0.2)
    provider.pay("k", **ORDER)
    time.sleep(0.25)
    assert provider.look_up("r-1")[0] == 200
    provider.pay("k", **ORDER)
    assert provider.paid == [("choir", "EUR", 88_000)] * 2


def test_its_books_outlive_it(provider: Provider) -> None:
    _, first = provider.pay("k", **ORDER)
    with provider.books.open("a") as torn:
        torn.write('{"at": 1, "ke')
    provider.restart()
    assert provider.pay("k", **ORDER) == (200, first)
    assert provider.pay("other", **ORDER | {"reference": "r-2"})[0] == 200
    assert [entry.reference for entry in provider.entries] == ["r-1", "r-2"]
