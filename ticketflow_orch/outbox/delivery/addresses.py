"""Connecting to hosts that somebody named, without being led into our own network.

A name is resolved once, all its addresses are judged, and the connection goes to one that was judged: a name that
answers differently a moment later leads nowhere else.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from queue import Empty, SimpleQueue

from ticketflow_orch.outbox.delivery.sockets import BoundedSocket, left

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
# Special by IANA's registries, and global to some of the versions of Python that are supported.
_NOBODYS = tuple(ipaddress.ip_network(network) for network in ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20"))
_OURS = tuple(
    ipaddress.ip_network(network)
    for network in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "::1", "fc00::/7")
)


class AddressError(Exception):
    """No connection was made, so nothing was sent; the message is one sentence."""


def connect(host: str, port: int, *, allow_private: bool) -> BoundedSocket:
    """A connection to `host`, which may be a name or an address, made within `sockets.within`.

    Raises:
        AddressError: it cannot be resolved, has an address that is refused, or does not answer.
    """
    try:
        addresses = _resolve(host, port)
        for address in addresses:
            judge(host, address, allow_private=allow_private)
        return _connect_first(addresses, port)
    except OSError as error:
        name = f"[{host}]" if ":" in host else host
        raise AddressError(f"{name}:{port} cannot be reached: {error.strerror or error}.") from None


def judge(host: str, address: str, *, allow_private: bool) -> None:
    """Whether we may connect to `address`, which `host` resolved to.

    Only the public internet may be asked, or, with `allow_private`, our own network and machine too. Link-local
    addresses (the metadata of clouds is there), multicast and the like are never anybody's receiver.

    Raises:
        AddressError: we may not.
    """
    ip = ipaddress.ip_address(address)
    if _public(ip) or (allow_private and _inside(ip)):
        return
    fix = "" if allow_private or not _inside(ip) else "; if it is ours, say allow_private = true"
    raise AddressError(f"{host} is at {address}, which is no public address{fix}.")


def _public(ip: IPv4Address | IPv6Address) -> bool:
    if any(ip in network for network in _NOBODYS):
        return False
    if isinstance(ip, IPv4Address):
        return ip.is_global and not ip.is_multicast
    if ip in _NAT64:
        return _public(IPv4Address(ip.packed[-4:]))
    if ip.sixtofour is not None:
        return _public(ip.sixtofour)
    return ip in _GLOBAL_UNICAST and ip.is_global


def _inside(ip: IPv4Address | IPv6Address) -> bool:
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return any((mapped or ip) in network for network in _OURS)


def _resolve(host: str, port: int) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    # The resolver of the system has its own patience, which nothing but leaving it alone can bound.
    answers: SimpleQueue[list[str] | OSError] = SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answers.put([str(address[0]) for *_, address in found])
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else OSError(0, "this is no host name"))

    threading.Thread(target=ask, name=f"resolve {host}", daemon=True).start()
    try:
        answer = answers.get(timeout=left())
    except Empty:
        raise TimeoutError("its name was not resolved in time") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _connect_first(addresses: list[str], port: int) -> BoundedSocket:
    # An address that swallows our packets leaves time for those after it.
    for number, address in enumerate(addresses):
        made = BoundedSocket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.settimeout(left() / (len(addresses) - number))
            made.connect((address, port))
        except OSError:
            made.close()
            if number == len(addresses) - 1:
                raise
        else:
            return made
    raise OSError(0, "its name has no address")
