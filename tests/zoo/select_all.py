"""Run in the zoo: one host process selects every animal, one after another, and trains on the CPU in the end.

Arguments: ``kind:name`` of each. Prints JSON: the errors' types and texts by argument.
"""

import json
import sys
import warnings

import accelkit

# torch is not imported here: whether it can be, beside all of these, is the Runtime's business.
found = {}
for argument in sys.argv[1:]:
    kind, _, name = argument.partition("=")
    try:
        if kind == "hooks":
            accelkit.Runtime(accelerator="cpu", hooks=[name])
        else:
            accelkit.Runtime(accelerator=name)
        found[argument] = None
    except accelkit.AccelkitError as error:
        found[argument] = {"type": type(error).__name__, "text": str(error), "exit_code": error.exit_code}

warnings.simplefilter("error")
rt = accelkit.Runtime(accelerator="cpu")
torch = sys.modules["torch"]
model = rt.prepare(torch.nn.Linear(1, 1))
rt.backward(model(torch.ones(1, 1)).sum())
print(json.dumps({"errors": found, "trained_on": str(rt.device), "matmul": (torch.ones(1, 1) @ torch.ones(1, 1)).item()}))
