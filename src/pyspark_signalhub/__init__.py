"""Spark looks for data sources in packages with this prefix: `format("signalhub")` just works.

Spark looks with the Python that `PYSPARK_PYTHON` names, by default the first `python3` of the path,
which may be one without this package. Importing it chooses this one: for the next session, and for
one that runs on this machine already.
"""

import os
import sys
import warnings

from pyspark import SparkContext
from pyspark.sql import SparkSession

from signalhub.pipeline.source.source import SignalHubSource as DefaultSource

__all__ = ["DefaultSource"]


def _choose_this_python() -> None:
    if "PYSPARK_PYTHON" in os.environ:
        return
    if SparkContext._gateway is None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        return
    session = SparkSession.getActiveSession()
    if session is not None and (session.sparkContext.master or "").startswith("local"):
        # Spark has looked already, or will look with the other Python; a source that is registered
        # needs no looking.
        session.sparkContext.pythonExec = sys.executable
        session.dataSource.register(DefaultSource)
        return
    warnings.warn(
        'Spark runs already and may not find format("signalhub"): import pyspark_signalhub before'
        f" the session is created, or set PYSPARK_PYTHON={sys.executable} and start again",
        stacklevel=3,
    )


_choose_this_python()
