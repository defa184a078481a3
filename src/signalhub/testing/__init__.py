"""Test doubles for users and our own tests: clocks, hubs, hosts, a faulty network and disk."""

from signalhub.testing.clock import FakeClock
from signalhub.testing.disk import FaultyDisk, PowerCut
from signalhub.testing.hub import RunningHub, run_hub
from signalhub.testing.local_actors import LocalActors, Unanswered
from signalhub.testing.process import HostProcess, HubProcess, spawn_host, spawn_hub
from signalhub.testing.proxy import ChaosProxy
from signalhub.testing.script import Peer, ScriptedHub

__all__ = [
    "ChaosProxy",
    "FakeClock",
    "FaultyDisk",
    "HostProcess",
    "HubProcess",
    "LocalActors",
    "Peer",
    "PowerCut",
    "RunningHub",
    "ScriptedHub",
    "Unanswered",
    "run_hub",
    "spawn_host",
    "spawn_hub",
]
