from accelkit import Accelerator


class RgpuAccelerator(Accelerator):
    """Devices of a remote machine, through rgpu."""

    device_type = "rgpu"
    torch_package = "rgpu"
