"""A vector cannot be copied to the device if more than 48 of its 128 chunks of 32 bits are not zero, as in a random hypervector."""

import torch
import torchhd_sparsr

vector = torch.rand(4096) > 0.5
try:
    vector.to("sparsr")
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
