"""A simulated PyTorch device that needs no hardware. Importing this package does not import torch and compiles nothing.

``import accelkit_fake_xpu.torch_backend`` adds ``torch.device("fake_xpu")`` to torch. The first import compiles a
C++ library.
"""
