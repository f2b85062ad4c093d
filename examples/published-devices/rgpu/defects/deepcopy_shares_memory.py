"""`copy.deepcopy` gives a second handle to the same tensor, so changing a copy of a model changes the model."""

import copy

import rgpu
import torch

model = torch.nn.Linear(2, 2).to("rgpu")
average = copy.deepcopy(model)
torch.nn.init.zeros_(average.weight)
if not model.weight.any().item():
    raise SystemExit("the weights of the copy were set to zero, and so were those of the model")
