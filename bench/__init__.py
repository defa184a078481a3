"""The load generator: Signal Hub and its peers under the same load, compared as ratios."""
