"""A vector can be copied to the device only if at most 48 of its 128 chunks of 32 bits are not zero. A random hypervector has more."""

import torch
import torchhd_sparsr

vector = torch.rand(4096) > 0.5
try:
    vector.to("sparsr")
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
