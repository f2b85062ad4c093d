"""Reference results for checks: torch's own samples, the CPU in higher precision, and the tolerances for a device."""
