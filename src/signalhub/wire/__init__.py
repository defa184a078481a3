"""What travels and what is stored: envelopes, entries, frames, names, errors."""
