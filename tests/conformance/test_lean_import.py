"""The databases of torch's own tests are imported quickly, and are those that a plain import gives."""

from __future__ import annotations

import json
import subprocess
import sys

DATABASES = """
import json, sys
from accelkit_conformance.oracle import opdb

dtypes = {name: sorted(map(str, op.supported_dtypes("cpu"))) for name, op in opdb.operators().items()}
samples = [repr(sample.args) for sample in opdb.samples(opdb.operators()["special.zeta"], "float32", 8)]
names = [sorted(found) for found in (opdb.foreach_operators(), opdb.modules(), opdb.optimizers())]
found = sorted({"scipy", "torch._inductor", "torch._inductor.utils"} & sys.modules.keys())
print(json.dumps([found, dtypes, samples, names]))
"""
OTHER_NAME = """
from accelkit_conformance.oracle.lean_import import lean_import

with lean_import():
    from torch._inductor.utils import cache_on_self
import torch._inductor.utils

assert torch._inductor.utils.cache_on_self is cache_on_self
"""


def run(code):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_they_are_the_same_with_and_without_scipy_and_inductor():
    """Afterwards, a name that the placeholder for Inductor lacks is that of the module."""
    lean = json.loads(run(DATABASES + OTHER_NAME))
    whole = json.loads(run(f"import torch.testing._internal.common_methods_invocations\n{DATABASES}"))
    assert lean[0] == []
    assert whole[0] == ["scipy", "torch._inductor", "torch._inductor.utils"]
    assert len(lean[1]) > 600
    assert lean[1:] == whole[1:]
