"""A simulated PyTorch device that needs no hardware. Importing this package neither imports torch nor compiles anything.

``import accelkit_fake_xpu.torch_backend`` adds ``torch.device("fake_xpu")`` to torch. This import compiles the device's C++ library,
unless an earlier import has compiled it.
"""
