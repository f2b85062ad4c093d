"""What plugins build on, as each version of accelkit had it: a JSON file a version, how one is made, and what differs between two."""
