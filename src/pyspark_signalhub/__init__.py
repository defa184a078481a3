"""Spark looks for data sources in packages with this prefix: `format("signalhub")` just works.

Spark looks with the Python that `PYSPARK_PYTHON` names, by default the first `python3` of the path,
which may be one without this package. Importing it before the session starts chooses this one.
"""

import os
import sys
import warnings

from pyspark import SparkContext

from signalhub.pipeline.source.source import SignalHubSource as DefaultSource

__all__ = ["DefaultSource"]

if SparkContext._gateway is None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
elif "PYSPARK_PYTHON" not in os.environ:
    warnings.warn(
        'Spark runs already and may not find format("signalhub"): import pyspark_signalhub before'
        f" the session is created, or set PYSPARK_PYTHON={sys.executable} and start again",
        stacklevel=2,
    )
