"""The pipeline as a process: Spark, schedule, status."""
