"""A TCP proxy that behaves like a bad network."""

from signalhub.operate.demo.proxy import ChaosProxy, Direction

__all__ = ["ChaosProxy", "Direction"]
