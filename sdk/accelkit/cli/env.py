"""``accelkit env``: show versions and settings, to paste into an issue."""

from __future__ import annotations

import os
import platform

import click

from accelkit import __version__, job_secret
from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json
from accelkit.discovery import autoload, catalog, device_table, verdict_cache
from accelkit.discovery.metadata import installed_version
from accelkit.errors import printable

_PACKAGES = (
    "torch",
    "pluggy",
    "importlib-metadata",
    "packaging",
    "click",
    "rich",
    "psutil",
    "nvidia-ml-py",
    "lightning",
    "accelerate",
    "torch-xla",
)


@click.command("env")
@json_option()
def command(is_json: bool) -> None:
    """Show versions and settings, to paste into an issue. No plugin is imported or probed.

    Only these environment variables are shown: TORCH_DEVICE_BACKEND_AUTOLOAD, variables whose names start with ACCELKIT_, and variables
    that limit which devices are visible. The value of ACCELKIT_JOB_SECRET is not shown.
    """
    versions = {"accelkit": __version__, "python": platform.python_version(), "platform": platform.platform()}
    versions |= {name: version for name in _PACKAGES if (version := installed_version(name))}
    variables = job_secret.settings(os.environ)
    variables |= {name: value for name, value in os.environ.items() if name == autoload.VARIABLE}
    variables |= device_table.visible_devices_variables(os.environ)
    plugins = [record for record in catalog.plugins() if not record.is_builtin]
    backends = [backend.plugin for backend in catalog.inventory().torch_backends]
    if is_json:
        rows = [{"name": r.name, "kind": r.kind, "plugin": r.plugin, "status": r.status, "reason": r.reason} for r in plugins]
        fields = {
            "versions": versions,
            "variables": variables,
            "plugins": rows,
            "torch_backends": backends,
            "cache": _cache(),
        }
        print_json("env", fields)
        return
    click.echo("```")
    for name, value in (versions | variables).items():
        click.echo(printable(f"{name}: {value}"))
    for record in plugins:
        click.echo(printable(f"{record.kind} {record.name} ({record.plugin}): {record.status}{': ' * bool(record.reason)}{record.reason}"))
    autoloading = "" if autoload.is_enabled() else " (autoload is off)"
    click.echo(printable(f"torch.backends: {', '.join(backends) or 'none'}{autoloading}"))
    click.echo("```")


def _cache() -> str:
    """Return the cache folder, or "" if this user has no cache folder."""
    try:
        return str(verdict_cache.cache_folder())
    except RuntimeError:
        return ""
