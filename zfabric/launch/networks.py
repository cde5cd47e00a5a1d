"""The address at which other machines reach this one, chosen by subnet: names of interfaces differ from machine to machine."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterator

import psutil

from zfabric.exceptions import ConfigError
from zfabric.runtime.cluster import REACH_SECONDS, default_address, resolve

NAME_SECONDS = 45.0
"""Seconds for a new machine's name to be known: a name server of Kubernetes remembers for 30 s that a pod has none yet."""
NAME_PAUSE_SECONDS = 0.5


def own_host(network: str) -> str:
    """Return this machine's address in ``network``, such as "10.1.0.0/16", or that of the default route for "".

    Raises ConfigError if it has none, or if that is loopback, which other machines cannot reach.
    """
    if network:
        try:
            wanted = ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise ConfigError(f"{network!r} is no network; write for example 10.1.0.0/16") from None
        found = next((address for _, address in _addresses() if ipaddress.ip_address(address) in wanted), "")
        if not found:
            raise ConfigError(f"this machine has no address in {network}: it has {_listed()}")
        return found
    found = default_address()
    if not found:
        raise ConfigError(f"this machine has no default route; name the network of the others with --network: it has {_listed()}")
    return found


def host_of(name: str) -> str:
    """Return the address of a host, this machine, as a number.

    Raises ConfigError if that is still unknown after ``NAME_SECONDS``, or loopback by a name of its own.
    """
    until = time.monotonic() + NAME_SECONDS
    while True:
        try:
            host = resolve(name, time.monotonic() + REACH_SECONDS)
            break
        except OSError as error:
            if time.monotonic() > until:
                raise ConfigError(f"this machine does not know the address of {name}: {error.strerror or 'no answer'}") from None
            time.sleep(NAME_PAUSE_SECONDS)
    if host != name and ipaddress.ip_address(host).is_loopback:
        raise ConfigError(f"to this machine {name} is {host}, which no other machine can reach; write its number, or add --network")
    return host


def _listed() -> str:
    return ", ".join(f"{address} ({interface})" for interface, address in _addresses())


def _addresses() -> Iterator[tuple[str, str]]:
    """(interface, address) pairs of this machine, without addresses that need a zone."""
    for interface, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family in (socket.AF_INET, socket.AF_INET6) and "%" not in each.address:
                yield interface, each.address
