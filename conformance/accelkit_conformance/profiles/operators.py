"""The operators of each profile, by their names in torch's ``op_db``. Does not import torch."""

from __future__ import annotations

DTYPES = (
    "float32", "bfloat16", "float16", "float64", "complex64", "complex128", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
"""The dtypes in which operators are tested, if the device declares them."""

SMOKE = (
    "add", "mul", "sub", "div.no_rounding_mode", "mm", "bmm", "addmm", "matmul", "nn.functional.linear", "nn.functional.conv2d", "sum", "mean",
    "softmax", "log_softmax", "nn.functional.relu", "nn.functional.gelu", "nn.functional.layer_norm", "nn.functional.embedding", "nn.functional.cross_entropy",
    "nn.functional.mse_loss", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos", "abs", "neg", "pow", "clamp", "maximum", "minimum",
    "where", "eq", "lt", "gt", "logical_and", "isnan", "max.reduction_with_dim", "argmax", "amax", "cumsum", "sort", "topk", "gather", "scatter",
    "scatter_add", "index_select", "index_add", "index_put", "masked_fill", "cat", "stack", "split", "chunk", "reshape", "permute", "transpose",
    "view", "expand", "squeeze", "unsqueeze", "flip", "tril", "triu", "nn.functional.pad.constant", "nn.functional.max_pool2d", "nn.functional.avg_pool2d",
    "nn.functional.batch_norm", "nn.functional.group_norm", "nn.functional.silu", "nn.functional.scaled_dot_product_attention", "var", "std", "prod",
    "floor", "to", "clone",
)  # fmt: skip
"""The 80 operators that most training programs need."""

CORE = (
    *SMOKE,
    "nn.functional.adaptive_avg_pool1d", "nn.functional.adaptive_avg_pool2d", "nn.functional.adaptive_avg_pool3d", "acos", "acosh", "addmv", "addbmm",
    "baddbmm", "all", "any", "amin", "arange", "argmin", "as_strided", "asin", "asinh", "atan", "atan2", "atanh", "nn.functional.avg_pool1d",
    "nn.functional.avg_pool3d", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "nn.functional.conv1d", "nn.functional.conv3d",
    "nn.functional.conv_transpose2d", "cosh", "diagonal", "nn.functional.elu", "erf", "expm1", "fill", "fmod", "full", "full_like", "ge", "le", "ne",
    "nn.functional.grid_sample", "nn.functional.hardtanh", "nn.functional.leaky_relu", "log10", "log1p", "log2", "logical_not", "logical_or",
    "logical_xor", "masked_scatter", "nn.functional.max_pool1d", "nn.functional.max_pool3d", "min.reduction_with_dim", "narrow", "nonzero", "norm",
    "ones_like", "zeros_like", "reciprocal", "remainder", "repeat", "round", "scalar_tensor", "scatter_reduce.sum", "scatter_reduce.amax", "select", "select_scatter", "slice",
    "slice_scatter", "sign", "sinh", "split_with_sizes", "tan", "trunc", "nn.functional.interpolate.bilinear", "nn.functional.interpolate.nearest",
    "nn.functional.instance_norm", "nn.functional.nll_loss", "nn.functional.binary_cross_entropy_with_logits", "nn.functional.smooth_l1_loss",
    "nn.functional.hardswish", "nn.functional.hardsigmoid", "nn.functional.mish", "nn.functional.softplus", "nn.functional.glu", "unbind", "unfold",
    "roll", "movedim", "lerp", "addcmul", "addcdiv", "logsumexp", "einsum", "outer", "dot", "mv", "linalg.vector_norm", "nan_to_num", "isinf", "isfinite",
    "bernoulli", "nn.functional.dropout", "take_along_dim", "cumprod", "floor_divide", "meshgrid.variadic_tensors", "tile", "index_copy", "index_fill",
    "logit", "constant_pad_nd", "empty_like", "linspace", "nn.functional.pixel_shuffle", "nn.functional.embedding_bag", "square", "hypot",
)  # fmt: skip
"""The operators of torch's Core ATen IR, and the operators into which layers and losses decompose."""
