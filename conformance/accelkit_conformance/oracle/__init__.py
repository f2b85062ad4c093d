"""Data for checks: inputs such as torch's sample inputs, expected results such as those of the CPU in higher precision, and tolerances."""
