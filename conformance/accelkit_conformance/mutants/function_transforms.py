"""Faults in ``torch.func``, in operators that are defined with ``torch.library``, and in the gradients of leaves with unusual strides."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken
from accelkit_conformance.mutants.derivatives import _Functions


@mutant("autograd", "torch.func", check="derivatives")
class VectorizesAllInputsOnly(_Functions):
    """Under ``torch.vmap``, ``mse_loss`` raises an error unless both inputs are vectorised."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        from torch._C._functorch import is_batchedtensor

        if name == "mse_loss" and is_batchedtensor(args[0]) != is_batchedtensor(args[1]):
            raise RuntimeError("the batching rule needs two batched tensors")
        return call()


@mutant("autograd", "torch.func", check="derivatives")
class HasNoJacobianOfLSTM(_Functions):
    """An LSTM raises an error inside ``torch.func.jacrev`` and the other gradient transforms."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        from torch._C._functorch import is_gradtrackingtensor

        if name == "lstm" and is_gradtrackingtensor(args[0]):
            raise RuntimeError("the storage of a wrapped tensor cannot be accessed")
        return call()


@mutant("autograd", "second derivatives", check="derivatives")
class DifferentiatesGRUOnce(_Functions):
    """The gradients of a GRU cannot be differentiated again."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        import torch

        def reject(gradient: Any) -> None:
            if torch.is_grad_enabled():
                raise NotImplementedError("the derivative for _gru_backward is not implemented")

        result = call()
        if name == "gru" and result[0].requires_grad:
            result[0].register_hook(reject)
        return result


@mutant("autograd", "custom operators", check="custom_operators")
class RecordsNoCustomOperators(Broken):
    """An operator that is defined with ``torch.library.custom_op`` ignores the formula for its gradients."""

    def install(self) -> None:
        import torch

        torch.library.CustomOpDef.register_autograd = lambda *args, **named: None  # type: ignore[attr-defined,method-assign]


def _leaves(node: Any) -> list[Any]:
    """Return the leaves of a graph."""
    found, nodes, seen = [], [node], set()
    while nodes:
        one = nodes.pop()
        if one is None or one in seen:
            continue
        seen.add(one)
        found += [one.variable] if hasattr(one, "variable") else []
        nodes += [following for following, _ in one.next_functions]
    return found


@mutant("autograd", "gradients of leaves", check="leaf_layouts")
class SumsGradientsOfExpandedLeaves(_Functions):
    """Each element of an expanded leaf gets the sum of the gradients of all elements that share its memory."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        leaves = _leaves(args[0].grad_fn) if name == "backward" else []
        result = call()
        for leaf in leaves:
            if 0 in leaf.stride():
                leaf.grad.copy_(leaf.grad.sum().expand_as(leaf.grad))
        return result


@mutant("autograd", "gradients of leaves", check="leaf_layouts")
class GradientsAreContiguous(_Functions):
    """The gradient of a leaf is contiguous, even if the leaf is transposed."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        leaves = _leaves(args[0].grad_fn) if name == "backward" else []
        result = call()
        for leaf in leaves:
            leaf.grad = leaf.grad.contiguous()
        return result


@mutant("layout", "convolutions of one pixel", check="convolutions")
class SwapsChannelsForOnePixel(Broken):
    """If images have one pixel, the weight gradient of a convolution with a strided weight has its channels in the wrong order."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name != "convolution_backward" or set(args[1].shape[2:]) != {1} or args[2].is_contiguous():
            return result
        return result[0], result[1].flip(1), result[2]


@mutant("operators", "many rows")
class SumsTheFirstRows(Broken):
    """In the backward pass of ``layer_norm`` over two dimensions, the gradient of the weight leaves out the contributions of the rows after
    the first 65,536."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name == "native_layer_norm_backward" and len(args[2]) == 2 and args[0].shape[0] > 65_536:
            first = [one[:65_536] for one in (args[0], args[1])], [one[:65_536] for one in args[3:5]]
            result = (result[0], func(*first[0], args[2], *first[1], *args[5:], **kwargs)[1], result[2])
        return result


@mutant("autograd", "forward mode under vmap", check="derivatives")
class HasNoVectorizedTangents(_Functions):
    """``torch.func.jvp`` of ``logsigmoid`` raises an error inside ``torch.vmap``."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        import torch
        from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

        tangent = torch.autograd.forward_ad.unpack_dual(args[0])[1] if name == "log_sigmoid" else None
        if tangent is not None and is_functorch_wrapped_tensor(tangent) and is_batchedtensor(get_unwrapped(tangent)):
            raise RuntimeError("the forward gradient has another size than the tensor")
        return call()
