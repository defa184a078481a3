"""Reads of disk and lake for people: one cursor over log and lake, hosts, calls and the lake itself."""
