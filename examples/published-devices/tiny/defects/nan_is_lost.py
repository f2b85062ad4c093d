"""`relu`, `maximum` and `minimum` return numbers where torch returns NaN, so NaNs in a model go unnoticed."""

import extra.torch_backend.backend
import torch

infinity, nan = (torch.tensor([value], device="tiny") for value in (float("inf"), float("nan")))
relu, maximum, minimum = (one.item() for one in (nan.relu(), torch.maximum(infinity, nan), torch.minimum(-infinity, nan)))
if relu == 0:
    raise SystemExit(f"relu(NaN) is {relu}, maximum(inf, NaN) is {maximum}, minimum(-inf, NaN) is {minimum}")
