"""{{ cookiecutter.vendor }}'s plugin for accelkit. Importing it changes nothing, and imports no torch."""
