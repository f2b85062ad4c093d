"""accelkit's plugins in Lightning: ``Trainer(**trainer_kwargs("acme"))``, or ``install()`` and then ``Trainer(accelerator="acme")``.

Supports versions 2.5 and 2.6 of ``lightning``, ``pytorch_lightning`` and ``lightning_fabric`` (``pip install 'accelkit[lightning]'``).
"""

from accelkit.bridges.lightning.adapter import from_lightning
from accelkit.bridges.lightning.installation import install, uninstall
from accelkit.bridges.lightning.kwargs import fabric_kwargs, trainer_kwargs

__all__ = ["fabric_kwargs", "from_lightning", "install", "trainer_kwargs", "uninstall"]
