"""Measures the pipeline and the lake; `python -m bench.lake`."""
