from accelkit import Accelerator


class TinyAccelerator(Accelerator):
    """Devices of tinygrad, through its PyTorch backend."""

    device_type = "tiny"
    torch_package = "extra.torch_backend.backend"
    first_call_timeout = 120  # each kernel is compiled when it is first called
