"""Faults in modules such as LSTM and in less common uses of autograd, such as second derivatives and in-place changes."""

from __future__ import annotations

from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


class _Functions(Broken):
    """The base class of mutants that change calls to torch's functions before autograd records the calls."""

    def install(self) -> None:
        changed = self.change

        import torch
        from torch.overrides import TorchFunctionMode

        class Changes(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = kwargs or {}
                is_here = args and isinstance(args[0], torch.Tensor) and args[0].device.type == "fake_xpu"
                call = lambda *others: func(*(others or args), **kwargs)  # noqa: E731
                return changed(getattr(func, "__name__", ""), call, args) if is_here else call()

        Changes().__enter__()

    def change(self, name: str, call: Any, args: Any) -> Any:
        """Call one of torch's functions and return its result. Mutants override this method.

        Args:
            name: The name of the function.
            call: A function that makes the call. If it is given arguments, they replace ``args``.
            args: The positional arguments of the call.
        """
        return call()


def _place_of_dropout(args: Any) -> int:
    """Return the index of ``dropout`` in the arguments of ``lstm``. The next argument is ``train``.

    ``lstm`` has two overloads, each with nine arguments. The overload for packed sequences takes a tensor of batch sizes as its second
    argument, so its ``dropout`` comes one place later than in the other overload. Only the other overload takes ``batch_first``, which is
    its last argument.
    """
    import torch

    return 6 if isinstance(args[1], torch.Tensor) else 5


@mutant("autograd", "second derivatives")
class DifferentiatesLinearOnce(_Functions):
    """The gradients of ``linear`` cannot be differentiated again."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        import torch
        from torch.autograd.function import once_differentiable

        class Linear(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight, *bias):  # type: ignore[no-untyped-def]
                ctx.save_for_backward(x, weight, *bias)
                with torch._C.DisableTorchFunction():
                    return torch.nn.functional.linear(x, weight, *bias)

            @staticmethod
            @once_differentiable
            def backward(ctx, gradient):  # type: ignore[no-untyped-def]
                inputs = [one.detach().requires_grad_() for one in ctx.saved_tensors]
                with torch.enable_grad(), torch._C.DisableTorchFunction():
                    return torch.autograd.grad(torch.nn.functional.linear(*inputs), inputs, gradient)

        is_plain = name == "linear" and len(args) in (2, 3) and all(isinstance(one, torch.Tensor) for one in args)
        return Linear.apply(*args) if is_plain and torch.is_grad_enabled() else call()  # type: ignore[no-untyped-call]


@mutant("autograd", "gradients at bounds")
class PassesAtBounds(Broken):
    """Where the input of ``hardtanh`` is equal to a bound, the gradient of the input is the output gradient instead of zero."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "hardtanh_backward":
            return call()
        gradient, x, least, most = args[:4]
        return gradient.masked_fill((x < least) | (x > most), 0)


@mutant("autograd", "random gradients")
class ForgetsDropoutInLSTM(_Functions):
    """The backward pass of an LSTM with dropout between its layers computes the gradients without dropout."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        result = call()
        if name != "lstm" or len(args) != 9:
            return result
        place = _place_of_dropout(args)
        dropout, train = args[place : place + 2]
        if not (dropout and train):
            return result
        plain = call(*args[:place], 0.0, *args[place + 1 :])
        return tuple(other + (one - other).detach() for one, other in zip(result, plain, strict=True))


@mutant("autograd", "changes in place")
class AssignsWithoutGraph(_Functions):
    """An assignment to elements of a tensor, such as ``x[mask] = y``, is not recorded in the graph."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        import torch

        if name != "__setitem__":
            return call()
        with torch.no_grad():
            return call()


@mutant("autograd", "versions")
class CopiesWithoutVersion(_Functions):
    """``copy_`` does not increase the version counter of the tensor that it changes."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        from torch.autograd import _unsafe_preserve_version_counter

        if name != "copy_":
            return call()
        with _unsafe_preserve_version_counter(args[0]):
            return call()


@mutant("autograd", "gradients through the CPU")
class CopiesToTheCPUWithoutGraph(_Functions):
    """``Tensor.cpu`` returns a tensor without a graph, so no gradient flows through it."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        return call(args[0].detach()) if name == "cpu" else call()


@mutant("modules", "cached modes")
class CachesTheModeOfLSTM(_Functions):
    """An LSTM runs in the mode (training or evaluation) of the first LSTM call with the same input shape and options.

    The options are, for example, the number of layers and the dropout probability.
    """

    def change(self, name: str, call: Any, args: Any) -> Any:
        if name != "lstm" or len(args) != 9:
            return call()
        place = _place_of_dropout(args) + 1
        others = tuple(args[0].shape), args[place - 2 : place], args[place + 1 :]
        cached = self.__dict__.setdefault("modes", {}).setdefault(others, args[place])
        return call(*args[:place], cached, *args[place + 1 :])


@mutant("modules", "masks")
class FastAttentionIgnoresMasks(Broken):
    """The fast path of ``TransformerEncoderLayer`` ignores the mask.

    PyTorch uses the fast path in evaluation mode when no gradients are recorded.
    """

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return func(*args[:18]) if name == "_transformer_encoder_layer_fwd" else call()


@mutant("autograd", "missing errors")
class ChangesInferenceTensors(_Functions):
    """``add_`` and ``zero_`` change an inference tensor outside ``torch.inference_mode`` instead of raising an error."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        import torch

        if name not in ("add_", "zero_") or not args[0].is_inference():
            return call()
        with torch.inference_mode():
            return call()


@mutant("training", "accumulation")
class AccumulatesMatricesOnly(Broken):
    """A second backward pass does not add to gradients of more than two dimensions, such as those of convolutions."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import threading

        is_in_backward_pass = isinstance(threading.current_thread(), threading._DummyThread)
        return args[0] if name == "add_.Tensor" and is_in_backward_pass and args[0].ndim > 2 else call()


@mutant("autograd", "graphs of results")
class RecordsUnderNoGrad(_Functions):
    """``msort`` and ``cumsum`` record a graph under ``torch.no_grad`` if their input requires a gradient."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        import torch

        result = call()
        is_affected = name in ("msort", "cumsum") and args[0].requires_grad and not result.requires_grad
        if not is_affected:
            return result
        with torch.enable_grad():
            return result + 0 * args[0].sum()


@mutant("modules", "low precision")
class ForgetsGatesInBfloat16(Broken):
    """A step of a GRU in bfloat16 returns the mean of the correct new hidden state and the previous hidden state."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if name != "_thnn_fused_gru_cell" or args[2].dtype is not torch.bfloat16:
            return result
        return ((result[0] + args[2]) / 2, *result[1:])


@mutant("modules", "shared memory")
class CopiesWhenDetaching(_Functions):
    """``detach`` returns a copy, so the tensors of a state dict share no memory with the parameters."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        import torch

        result = call()
        if name != "detach":
            return result
        with torch._C.DisableTorchFunction():
            return result.clone()


@mutant("modules", "cached modes")
class RemembersEps(Broken):
    """``group_norm`` uses the epsilon of the first call with the same shape and number of groups."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "native_group_norm":
            return call()
        eps = self.__dict__.setdefault("eps", {}).setdefault((tuple(args[0].shape), args[6]), args[7])
        return func(*args[:7], eps, **kwargs)
