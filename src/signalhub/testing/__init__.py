"""What users and our own tests share: a clock to turn by hand, real hubs, a bad network."""

from signalhub.testing.clock import FakeClock
from signalhub.testing.hub import RunningHub, run_hub
from signalhub.testing.process import HubProcess, spawn_hub
from signalhub.testing.proxy import ChaosProxy
from signalhub.testing.scripted import Peer, ScriptedHub

__all__ = [
    "ChaosProxy",
    "FakeClock",
    "HubProcess",
    "Peer",
    "RunningHub",
    "ScriptedHub",
    "run_hub",
    "spawn_hub",
]
