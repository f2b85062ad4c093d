"""A device index that is out of range is accepted, and the tensor is on device 0. On CUDA devices, this raises an error."""

import torch
import torch_openreg

number = torch.openreg.device_count()
tensor = torch.zeros(1, device="openreg:99")
raise SystemExit(f"there are {number} devices, and a tensor on openreg:99 is on {tensor.device}")
