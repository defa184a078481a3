"""The client's half of the wire protocol, without I/O."""
