"""The shell of a host: a thread, a connection, tasks."""
