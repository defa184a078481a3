"""The Spark data source `signalhub`: segments as Arrow batches."""
