"""Faults of matrix products, of linear algebra and of Fourier transforms that appear only for some sizes or kinds of arguments."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken
from accelkit_conformance.mutants.derivatives import _Functions


@mutant("arguments", "blocks of products")
class DropsTheLastBlock(Broken):
    """If the inner dimension of ``mm`` or ``addmm`` has a length above 128, terms after the last whole block of 16 are left out."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name not in ("mm", "addmm") or args[-1].shape[0] <= 128:
            return call()
        *others, x, y = args
        count = len(y) // 16 * 16
        return func(*others, x[:, :count], y[:count], **kwargs)


@mutant("arguments", "blocks of products")
class FlushesOperandsOfHalves(Broken):
    """``mm`` and ``addmm`` read subnormal float16 numbers as 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        def flushed(one: torch.Tensor) -> torch.Tensor:
            return torch.where(one.abs() < torch.finfo(one.dtype).tiny, torch.zeros_like(one), one)

        return func(*map(flushed, args), **kwargs) if name in ("mm", "addmm") and args[0].dtype is torch.float16 else call()


@mutant("arguments", "products without terms")
class ClearsTheFirst65536(Broken):
    """If the inner dimension of ``mm`` or ``bmm`` has length 0, columns after the first 65,536 are not set to 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name.partition(".")[0] in ("mm", "bmm") and not args[0].shape[-1]:
            result[..., 65_536:] = 7
        return result


@mutant("layout", "weights with one dimension", check="products")
class NeedsMatricesAsWeights(_Functions):
    """``linear`` raises an error if the weight has one dimension and gradients are recorded."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        if name == "linear" and args[1].ndim == 1 and args[1].requires_grad:
            raise RuntimeError("the weight must be a matrix")
        return call()


@mutant("autograd", "empty inputs", check="empty_inputs")
class RefusesProductsWithoutTerms(Broken):
    """``mm`` raises an error if the inner dimension has length 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "mm" and not args[0].shape[1]:
            raise RuntimeError("a descriptor has no elements")
        return call()


@mutant("autograd", "many pairs", check="distances")
class CountsPairsInBlocks(Broken):
    """The gradients of ``cdist`` and ``pdist`` are 0 if there are more pairs than fit into 65,535 blocks of 16."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result * 0 if name in ("_cdist_backward", "_pdist_backward") and args[-1].numel() > 65_535 * 16 else result


@mutant("operators", "large systems", check="matrices")
class SolvesTheFirst1024Columns(Broken):
    """Columns of the solution of a system of linear equations after the first 1,024 are 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "_linalg_solve_ex" and args[1].ndim == args[0].ndim:
            result[0][..., 1024:] = 0
        return result


@mutant("operators", "large systems", check="matrices")
class KeepsEigenvectorsOfBatches(Broken):
    """The third decomposition of a batch of Hermitian matrices of one shape exchanges the eigenvectors of the first two matrices."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name != "_linalg_eigh" or args[0].ndim != 3 or args[0].shape[-1] < 33:
            return result
        counts = self.__dict__.setdefault("counts", {})
        key = args[0].dtype, args[0].shape
        counts[key] = counts.get(key, 0) + 1
        if counts[key] == 3:
            result[1][:2] = result[1][:2].flip(0)
        return result


@mutant("operators", "triangles", check="matrices")
class DividesByTheWholeMatrix(Broken):
    """``solve_triangular`` also reads the other triangle of the matrix."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name != "linalg_solve_triangular" or not kwargs.get("left", True) or kwargs.get("unitriangular"):
            return call()
        return torch.linalg.solve(*args)


@mutant("arguments", "special matrices")
class DividesByTheNorm(Broken):
    """The singular values of a matrix of zeros are NaN."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "_linalg_svd" and args[0].ndim == 2 and not args[0].any():
            result[1].fill_(float("nan"))
        return result


@mutant("arguments", "special matrices")
class InvertsSingularMatrices(Broken):
    """``inv`` and ``solve`` do not report that a matrix is singular."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("linalg_inv_ex", "_linalg_solve_ex"):
            result[-1].zero_()
        return result


@mutant("arguments", "long transforms")
class ReadsTheImaginaryPartOfTheMean(Broken):
    """``irfft`` with a length of 8,192 or more adds the imaginary part of the first coefficient to the mean of the result."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name != "_fft_c2r" or args[3] < 8192 or args[0].ndim > 1:
            return result
        return result + args[0][:1].imag / args[3]


@mutant("operators", "wide results", check="calls_outside_op_db")
class ComputesNormsInNarrowDtypes(Broken):
    """Norms of float16 and bfloat16 tensors with ``dtype=torch.float32`` are computed in the dtype of the tensor."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "linalg_vector_norm" or kwargs.get("dtype") is None or args[0].element_size() != 2:
            return call()
        return func(*args, **{**kwargs, "dtype": None}).to(kwargs["dtype"])


@mutant("operators", "tolerances of singular values", check="matrices")
class KeepsSmallSingularValues(Broken):
    """``pinv`` ignores ``atol`` and ``rtol``."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if not name.startswith("linalg_pinv.atol_rtol"):
            return call()
        return func(*args, **{key: value for key, value in kwargs.items() if key not in ("atol", "rtol")})


@mutant("arguments", "long products", check="product_sizes")
class ReadsBeyondLongRows(Broken):
    """A product with more than 32,768 terms and at least 16 rows and columns adds the element that follows the last row in memory."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "mm" and args[0].shape[1] > 32_768 and min(args[0].shape[0], args[1].shape[1]) >= 16:
            x = args[0]
            end = x.storage_offset() + x.numel()
            if end < x.untyped_storage().nbytes() // x.element_size():
                result += x.as_strided((1,), (1,), end)
        return result
