"""Static checks, which find mistakes in the class of a plugin without calling its methods.

The module ``rules`` lists the checks and runs them. The checks do not import torch, and take milliseconds. ``accelkit doctor`` runs them in
a child process. The conformance suite runs them in its worker processes, as part of its profile ``contract``. A Runtime runs only the
checks of hook implementations.
"""
