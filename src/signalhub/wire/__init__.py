"""The formats on the wire and in the log: envelopes, entries, frames, names, errors."""
