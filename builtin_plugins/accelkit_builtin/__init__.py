"""The plugins that come with accelkit: they register through entry points and import ``accelkit``'s public names, as a third party's do.

A file in ``accelerators/``, ``precisions/``, ``clusters/`` or ``strategies/`` holds the plugin of its name.
"""
