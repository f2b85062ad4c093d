"""Checks of arguments that several methods of Runtime have in common."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from accelkit.errors import UsageError


def check_function(function: object, method: str, call: str) -> None:
    """Check that ``function`` can be called.

    Args:
        function: The argument that the user passed.
        method: The method of ``Runtime`` that got the argument.
        call: The call that the method makes, such as ``function(batch_size)``.

    Raises:
        UsageError: If ``function`` cannot be called.
    """
    if not callable(function):
        raise UsageError(
            f"rt.{method} needs a function, got {function!r:.80}",
            why=f"it calls {call}",
            hint=f"pass the function itself, not its name or its result: rt.{method}(function)",
        )


def check_model(model: object, method: str) -> None:
    """Check that ``model`` is a module.

    Args:
        model: The argument that the user passed.
        method: The method of ``Runtime`` that got the argument.

    Raises:
        UsageError: If ``model`` is not a torch.nn.Module.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"rt.{method} needs a torch.nn.Module, got {type(model).__name__}",
            why="it reads the weights of a model",
            hint="pass the model; rt.save(object, file) saves other objects",
        )


def path_of(given: str | os.PathLike[str]) -> Path:
    """Convert the path that the user gave to a ``Path``, and return it.

    Raises:
        UsageError: If the path is empty, which would mean the current folder, or is not a path.
    """
    if isinstance(given, str | os.PathLike) and os.fspath(given):
        return Path(given)
    raise UsageError(
        f"{given!r:.80} is not a path",
        why="a path must be a non-empty string or a pathlib.Path",
        hint='pass a path, such as "checkpoints"',
    )
