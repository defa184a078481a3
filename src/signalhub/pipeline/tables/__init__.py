"""The tables of the lake and how they follow from `entries`."""
