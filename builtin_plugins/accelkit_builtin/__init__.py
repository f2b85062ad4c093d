"""The plugins that ship with accelkit. Like third-party plugins, they register through entry points and import ``accelkit``'s public names.

Each plugin has a module of its own name in ``accelerators/``, ``precisions/``, ``clusters/`` or ``strategies/``.
"""
