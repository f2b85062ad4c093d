"""The hook plugin ``{{ cookiecutter.accelerator }}_hooks``, which a program enables by name in ``Runtime(hooks=[...])``.

The comments list the other hooks. They can be deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from accelkit import hookimpl

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class {{ cookiecutter.__class }}Hooks:
    """Logs how long the device takes to start, and when a checkpoint is complete."""

    @hookimpl(wrapper=True)
    def setup_device(self, device: torch.device) -> Generator[None, object, object]:
        """Wrap the set-up of the device, which the ``yield`` runs."""
        start = time.perf_counter()
        result = yield
        logger.info("%s was set up in %.3f s", device, time.perf_counter() - start)
        return result

    @hookimpl
    def checkpoint_saved(self, path: Path) -> None:
        """Log the path of a complete checkpoint. Called on the main process only."""
        logger.info("saved %s", path)

    # -- optional: uncomment the hooks that the plugin implements, and leave out the arguments that it does not need ------------
    #
{% include "hooks_options.txt" %}
