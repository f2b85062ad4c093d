"""A vendor's precision: the whole module of its distribution. Weights differ if losses are not scaled, or gradients not unscaled once."""

import weakref

import torch

from accelkit import Precision, tree_map


class Scaled(Precision):
    """bfloat16 autocast, and losses that are multiplied by a number that grows. The third step is skipped."""

    required_capabilities = ("autocast.bfloat16",)

    def __init__(self):
        self.scale, self.steps = 3.0, 0
        self.log = []
        self._unscaled = weakref.WeakSet()

    def setup(self, accelerator, device):
        self.log.append(f"setup {device}")
        self._device_type = accelerator.autocast_device_type

    def teardown(self):
        self.log.append("teardown")
        self.scale, self.steps = 3.0, 0

    def convert_input(self, data):
        return tree_map(lambda value: value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.float64 else value, data)

    def convert_output(self, data):
        return tree_map(lambda value: value.double() if isinstance(value, torch.Tensor) else value, data)

    def check_optimizer(self, optimizer):
        self.log.append(f"optimizer {type(optimizer).__name__}")

    def forward_context(self):
        return torch.autocast(self._device_type, torch.bfloat16)

    def pre_backward(self, loss):
        return loss * self.scale

    def unscale_gradients(self, optimizer):
        if optimizer in self._unscaled:
            return
        self._unscaled.add(optimizer)
        self.log.append("unscale")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= self.scale

    def optimizer_step(self, optimizer, step, closure=None):
        if closure is not None:
            closure()
        self.unscale_gradients(optimizer)
        self._unscaled.discard(optimizer)
        self.steps += 1
        self.scale += 1.5
        if self.steps == 3:
            self.log.append("skip")
            return None
        return step()

    def state_dict(self):
        return {"scale": self.scale, "steps": self.steps}

    def load_state_dict(self, state):
        if state:
            self.scale, self.steps = state["scale"], state["steps"]
