"""The interface that gloo uses between nodes (case 172)."""

from __future__ import annotations

import ipaddress
import os
import socket

import pytest

from recpipe.errors import ConfigError
from recpipe.train import interface
from recpipe.train.interface import SETTING, interface_for

TWO_NODES = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "MASTER_PORT": "29500"}
ONE_NODE = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "MASTER_PORT": "29500"}


@pytest.fixture
def host(monkeypatch):
    """A host with two cards, whose route to everything outside leaves by the second."""
    known = [("lo", "127.0.0.1"), ("eth0", "192.168.7.2"), ("ib0", "10.0.0.2"), ("lo", "::1"), ("ib0", "fd00::2")]
    monkeypatch.setattr(interface, "addresses", lambda: [(name, ipaddress.ip_address(one)) for name, one in known])

    def route(source):
        monkeypatch.setattr(interface, "source_address", lambda *_: ipaddress.ip_address(source))

    return route


@pytest.mark.parametrize(("source", "name"), [("10.0.0.2", "ib0"), ("192.168.7.2", "eth0"), ("fd00::2", "ib0")])
def test_the_interface_of_the_route_to_the_master(host, source, name):
    host(source)
    assert interface_for({**TWO_NODES, "MASTER_ADDR": "node-a"}) == {SETTING: name}


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.1.1", "::1"])
def test_a_master_on_this_machine_is_met_on_loopback(host, source):
    host(source)
    assert interface_for({**ONE_NODE, "MASTER_ADDR": "localhost"}) == {SETTING: "lo"}


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.1.1", "172.16.0.9"])
def test_where_no_interface_fits_the_setting_is_named(host, source):
    """The master's name resolves to loopback on one of two nodes."""
    host(source)
    with pytest.raises(ConfigError, match=rf"{SETTING}.*ib0 \(10\.0\.0\.2\)"):
        interface_for({**TWO_NODES, "MASTER_ADDR": "node-a"})


def test_what_the_user_has_set_stays(host):
    host("10.0.0.2")
    assert interface_for({**TWO_NODES, "MASTER_ADDR": "node-a", SETTING: "eth0"}) == {}
    assert interface_for({"RANK": "0", "WORLD_SIZE": "1"}) == {}


def test_a_name_that_is_not_known_here():
    with pytest.raises(ConfigError, match=r"MASTER_ADDR=nowhere\.invalid: .*GLOO_SOCKET_IFNAME"):
        interface_for({**TWO_NODES, "MASTER_ADDR": "nowhere.invalid"})


def test_this_machine():
    assert interface_for({**ONE_NODE, "MASTER_ADDR": "127.0.0.1"}) == {SETTING: "lo"}
    assert ("lo", ipaddress.ip_address("127.0.0.1")) in interface.addresses()
    assert {name for name, _ in interface.addresses()} <= {name for _, name in socket.if_nameindex()}
    assert os.path.exists("/sys/class/net/lo")
