"""A device index that is out of range is accepted, and the tensor is on device 0. On CUDA devices, this raises an error."""

import rgpu
import torch

number = torch.rgpu.device_count()
tensor = torch.zeros(1, device="rgpu:99")
raise SystemExit(f"there is {number} device, and a tensor on rgpu:99 is on {tensor.device}")
