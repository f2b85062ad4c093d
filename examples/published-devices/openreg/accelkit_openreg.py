from accelkit import Accelerator


class OpenregAccelerator(Accelerator):
    """PyTorch's example of an out-of-tree device, on the CPU."""

    device_type = "openreg"
    torch_package = "torch_openreg"
    is_simulated = True
