"""Snapshots of the specifications that plugins build on, one JSON file per version of accelkit, and comparison of two of them."""
