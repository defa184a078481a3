"""Putting a measured load on a running hub: `signalhub bench`.

The command starts clients in processes of their own. Messages are due at fixed times whatever
became of those before, and a latency counts from the time a message was due: a hub that stops for a
second is seen by everything that was due in it.
"""
