"""Bridges that make accelkit's plugins available in other frameworks."""
