"""`torch.sparsr` has no `device_count`, so programs cannot find out how many devices there are."""

import torch
import torchhd_sparsr

try:
    torch.sparsr.device_count()
except AttributeError as error:
    raise SystemExit(f"AttributeError: {error}") from None
