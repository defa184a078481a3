"""Applications for frameworks that are not servers by themselves."""
