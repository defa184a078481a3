"""The project's own load generator: Signal Hub and its peers under the same load, as ratios."""
