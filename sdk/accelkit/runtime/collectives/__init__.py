"""Collectives on nested data, and checks that all processes make the same calls."""
