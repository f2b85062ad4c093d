"""The conformance suite: what proves a plugin on the hardware in front of you. ``accelkit conformance run NAME``; docs/conformance.md
tells the rest."""
