"""Collectives of nested data: what they do, and how processes find out that not all of them do the same."""
