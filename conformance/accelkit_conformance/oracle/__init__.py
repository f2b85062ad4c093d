"""Inputs, expected results and tolerances for checks, such as torch's own samples and the CPU's results in higher precision."""
