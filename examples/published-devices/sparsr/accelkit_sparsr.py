from accelkit import Accelerator, Availability


class SparsrAccelerator(Accelerator):
    """The Sparsr processor, through torchhd_sparsr and its emulator."""

    device_type, torch_package = "sparsr", "torchhd_sparsr"

    def auto_device_count(self):  # torch.sparsr has no device_count
        return 1

    def check(self):  # the default adds numbers, which the device cannot do
        import torch

        return Availability.usable(f"{torch.arange(4096).eq(7).to('sparsr').device} holds a vector")
