"""The terminal: arguments, output, progress, errors."""
