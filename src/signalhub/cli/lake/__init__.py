"""Commands for the pipeline and the lake."""
