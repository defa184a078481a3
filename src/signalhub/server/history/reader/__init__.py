"""The process that reads disk and lake for people, so that the hub never waits for either."""
