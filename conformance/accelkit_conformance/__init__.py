"""The conformance suite, which tests a plugin on the hardware of the current machine.

``accelkit conformance run NAME`` runs it; see docs/conformance.md.
"""
