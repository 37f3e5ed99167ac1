"""Which network interface gloo uses between nodes: that of the route to the master, unless the user has named one.

gloo itself asks what this host's name resolves to, which on many machines is loopback. Standard library and Linux.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from recpipe.errors import ConfigError

SETTING = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")


def interface_for(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that names the interface; empty where it is set, or where ranks do not meet at an address.

    Args:
        environ: of a worker of torchrun or SLURM: MASTER_ADDR, MASTER_PORT, WORLD_SIZE, perhaps LOCAL_WORLD_SIZE.

    Raises:
        ConfigError: no interface leads to the master, or only loopback does and there are other nodes.
    """
    if environ.get(SETTING) or "MASTER_ADDR" not in environ or environ.get("WORLD_SIZE", "1") == "1":
        return {}
    master, port = environ["MASTER_ADDR"], int(environ.get("MASTER_PORT") or 1)
    source = source_address(master, port)
    found = addresses()
    names = [name for name, address in found if address == source]
    if source.is_loopback and not names:
        names = [name for name, address in found if address.is_loopback][:1]  # 127.0.1.1 is an address of no interface.
    if not names or (source.is_loopback and _other_nodes(environ)):
        raise ConfigError(_advice(f"MASTER_ADDR={master} is reached from {source}", found))
    return {SETTING: names[0]}


def source_address(host: str, port: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """This machine's own address on the way to a host. Nothing is sent.

    Raises:
        ConfigError: its name is not known here, or no route leads to it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return _plain(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(_advice(f"MASTER_ADDR={host}: {error.strerror or error}", addresses())) from None


def addresses() -> list[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """Names of interfaces with their addresses: the first of IPv4, all of IPv6."""
    found: list[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # It has none.
            found.append((name, ipaddress.IPv4Address(answer[20:24])))
    if _IPV6_ADDRESSES.exists():
        lines = [line.split() for line in _IPV6_ADDRESSES.read_text().splitlines()]
        found += [(words[5], ipaddress.IPv6Address(int(words[0], 16))) for words in lines]
    return found


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address.partition("%")[0])


def _other_nodes(environ: Mapping[str, str]) -> bool:
    """Whether some rank surely is on another node."""
    local = environ.get("LOCAL_WORLD_SIZE") or environ.get("SLURM_NTASKS_PER_NODE") or environ["WORLD_SIZE"]
    nodes = environ.get("GROUP_WORLD_SIZE") or environ.get("SLURM_STEP_NUM_NODES") or "1"
    return local != environ["WORLD_SIZE"] or nodes != "1"


def _advice(what: str, found: list[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]) -> str:
    listed = ", ".join(f"{name} ({address})" for name, address in found if not address.is_link_local)
    return (
        f"{what}, so no network interface fits for the other nodes. Set {SETTING} on every node to the one that leads to them "
        f"(here: {listed}), and see that MASTER_ADDR (torchrun: --local-addr of node 0) is an address that all nodes reach"
    )


def set_interface() -> None:
    """Tells gloo, in this process and those that it starts."""
    os.environ.update(interface_for(os.environ))
