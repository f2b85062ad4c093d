"""A vector whose 32-bit chunks are mostly not zero cannot be copied to the device. Random hypervectors are such vectors."""

import torch
import torchhd_sparsr

vector = torch.rand(4096) > 0.5
try:
    vector.to("sparsr")
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}") from None
