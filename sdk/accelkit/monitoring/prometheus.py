"""Serve the newest sample of the devices' statistics to Prometheus."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelkit.errors import UnavailableError, UsageError
from accelkit.monitoring.monitor import Sample

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_INVALID = re.compile("[^a-zA-Z0-9_]")


class Exporter:
    """An HTTP server in a thread of this process. It serves one gauge for each statistic, such as ``accelkit_board_power_watts``.

    The values are those of the sample that was last passed to ``show``. Before the first call to ``show``, there are no gauges.

    Args:
        accelerator: The name of the accelerator, for the label ``accelerator``.
        address: The address to listen on.
        port: The port to listen on. 0 selects a free port.

    Raises:
        UnavailableError: If ``prometheus-client`` is not installed.
        UsageError: If the server cannot listen on this address and port.
    """

    def __init__(self, accelerator: str, address: str, port: int) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ModuleNotFoundError as error:
            hint = "pip install 'accelkit[prometheus]'"
            raise UnavailableError("--prometheus needs the package prometheus-client", why=str(error), hint=hint) from error
        self._accelerator, self._sample = accelerator, Sample(0.0, {})
        registry = CollectorRegistry()
        registry.register(self)
        try:
            server, _ = start_http_server(port, address, registry)
        except OSError as error:
            is_address = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            hint = "choose an --address that belongs to this machine" if is_address else "choose another --prometheus PORT"
            raise UsageError(f"cannot listen on port {port} of {address}", why=str(error), hint=hint) from error
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{server.server_port}/metrics"

    def show(self, sample: Sample) -> None:
        """Serve this sample from now on."""
        self._sample = sample

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges. prometheus-client calls this for each request."""
        from prometheus_client.core import GaugeMetricFamily

        sample = self._sample
        for name in sorted({name for stats in sample.stats.values() for name in stats}):
            gauge = GaugeMetricFamily(f"accelkit_{_INVALID.sub('_', name)}", f"{name} of the device", labels=["accelerator", "device"])
            for device, stats in sample.stats.items():
                if name in stats:
                    gauge.add_metric([self._accelerator, device], stats[name])
            yield gauge
