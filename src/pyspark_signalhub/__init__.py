"""Spark looks for data sources in packages with this prefix: `format("signalhub")` just works."""

from signalhub.pipeline.source.source import SignalHubSource as DefaultSource

__all__ = ["DefaultSource"]
