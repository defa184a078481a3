"""Applications written for frameworks that are not servers by themselves."""
