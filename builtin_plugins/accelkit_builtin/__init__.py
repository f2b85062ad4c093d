"""The plugins that ship with accelkit. Like third-party plugins, they register through entry points and import ``accelkit``'s public names.

Each plugin has its own module in ``accelerators/``, ``precisions/``, ``clusters/`` or ``strategies/``.
"""
