"""Which addresses may be connected to: the public internet, and our own network only when somebody says so."""

from __future__ import annotations

import pytest

from ticketflow_orch.outbox.delivery.addresses import AddressError, judge

PUBLIC = (
    "8.8.8.8",
    "100.63.255.255",
    "172.15.0.1",
    "172.32.0.1",
    "2606:4700::1111",
    "64:ff9b::808:808",
    "2002:808:808::1",
)
INSIDE = (
    *("127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1"),
    *("::1", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
)
NOBODYS = (
    *("0.0.0.0", "169.254.169.254", "224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1"),
    *("::", "fe80::1", "fec0::1", "ff02::1", "::ffff:169.254.169.254", "::ffff:8.8.8.8", "::127.0.0.1"),
    *("64:ff9b::a9fe:a9fe", "2002:7f00:1::1", "2002:a9fe:a9fe::1", "2001:0:7f00:1::1", "64:ff9b:1::1"),
    *("192.0.0.8", "192.0.0.192", "192.88.99.1", "3fff::1", "64:ff9b::c000:8", "2002:c058:6301::1"),
)


@pytest.mark.parametrize("allow_private", [True, False])
@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet_may_be_asked(address: str, allow_private: bool) -> None:
    judge("receiver.example", address, allow_private=allow_private)


@pytest.mark.parametrize("address", INSIDE)
def test_our_own_network_may_be_asked_when_somebody_says_so(address: str) -> None:
    judge("receiver.example", address, allow_private=True)
    with pytest.raises(AddressError, match="which is no public address; if it is ours, say allow_private = true"):
        judge("receiver.example", address, allow_private=False)


@pytest.mark.parametrize("allow_private", [True, False])
@pytest.mark.parametrize("address", NOBODYS)
def test_what_is_no_receivers_address_is_never_asked(address: str, allow_private: bool) -> None:
    with pytest.raises(AddressError, match=r"which is no public address\.$"):
        judge("receiver.example", address, allow_private=allow_private)
