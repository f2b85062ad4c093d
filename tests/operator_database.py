"""Import torch's database of operators without modules of accelkit, for the servers that fork workers of the conformance suite.

Those modules stay unimported, because importing one that is preloaded also imports torch.
"""

from __future__ import annotations

import sys

import torch

_BEFORE = set(sys.modules)

from accelkit_conformance.oracle.lean_import import lean_import  # noqa: E402

_FLAGS = torch.backends.flags_frozen.__globals__
_ALLOWED = {name: value for name, value in _FLAGS.items() if name.endswith("_mutation_flag")}
with lean_import():
    import torch.testing._internal.common_methods_invocations
    import torch.testing._internal.common_modules
    import torch.testing._internal.common_optimizers
# The database forbids assignments to flags of torch.backends. A worker makes one before it imports the database.
_FLAGS.update(_ALLOWED)

for _name in set(sys.modules) - _BEFORE:
    if _name.partition(".")[0] == "accelkit_conformance":
        del sys.modules[_name]
