"""{{ cookiecutter.vendor }}'s plugin for accelkit. Importing it has no side effects and does not import torch."""
