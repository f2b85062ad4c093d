"""Where truth comes from: torch's own samples, the CPU in higher precision, and how far from it a device may be."""
