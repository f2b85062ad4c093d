"""Hostile plugins, as real wheels in a real environment."""
