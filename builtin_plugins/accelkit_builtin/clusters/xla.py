"""``torch_xla.launch`` on TPUs. It starts one process per chip and sets the TPU library's own variables in each process."""

from __future__ import annotations

from collections.abc import Mapping

from accelkit import ClusterDetection, ClusterEnvironment, UnsupportedError

_LOCAL_RANK, _LOCAL_SIZE = "PJRT_LOCAL_PROCESS_RANK", "PJRT_LOCAL_PROCESS_COUNT"
_RANK, _ADDRESSES = "CLOUD_TPU_TASK_ID", "TPU_PROCESS_ADDRESSES"
_PORT = 12355


class XLAEnvironment(ClusterEnvironment):
    """The environment of a process that torch_xla.launch started.

    torch_xla.launch starts one process per TPU chip. If XLA uses the CPU, torch_xla.launch runs the program in a single process.

    Protocol: the variables that torch_xla._internal.tpu.configure_topology and torch_xla._internal.pjrt.initialize_multiprocess set in
    each process.
    """

    processes_flag = "torch_xla.launch(function) on machines with {} chips"
    nodes_flag = "torch_xla.launch(function) on each of {} machines"

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        """Return a ``ClusterDetection`` if PJRT_LOCAL_PROCESS_RANK is set, otherwise None.

        The priority of this ``ClusterDetection`` is lower than torchrun's priority, because a process that torchrun started may also have
        the variables of torch_xla.launch. It is usually higher than MPI's priority, because the variables of MPI describe the program that
        calls torch_xla.launch, and not the processes that torch_xla.launch started. However, if torch's variables were set by hand in
        processes that mpirun started, MPI's priority is higher (see ``by_hand``).

        If TPU_PROCESS_ADDRESSES is not set and XLA does not use the CPU, the priority is negative, so the ``ClusterDetection`` is not used.
        """
        if not environ.get(_LOCAL_RANK):
            return None
        if environ.get("PJRT_DEVICE", "").upper() == "CPU" or environ.get(_ADDRESSES):
            return ClusterDetection("xla", 65, f"{_LOCAL_RANK}: torch_xla.launch started this process")
        return ClusterDetection("xla", -1, f"{_LOCAL_RANK} is set, but {_ADDRESSES}, which torch_xla.launch sets on TPUs, is not")

    def validate_settings(self, num_devices: int | None, num_nodes: int | None) -> None:
        """Check that the user's settings match the launched processes, and that XLA does not use several CPU devices.

        On the CPU, torch_xla.launch creates one thread per device, and XLA has no collectives between these threads.

        Raises:
            UsageError: If the value of a variable, such as CPU_NUM_DEVICES, is invalid.
            UnsupportedError: If there are several CPU devices.
            ContradictionError: If the settings do not match the processes that were launched.
        """
        if self._is_on_cpu and self.number("CPU_NUM_DEVICES", least=1, default=1) > 1:
            raise UnsupportedError(
                "torch_xla.launch does not support several CPU devices",
                plugin=self.plugin,
                why="XLA has no collectives between threads that each use one CPU device, and would abort the process "
                "(github.com/pytorch/xla/issues/9089, github.com/pytorch/xla/issues/5005)",
                hint="use strategy='xla', which uses all devices from one process, or start one process per device with accelkit launch",
            )
        super().validate_settings(num_devices, num_nodes)

    @property
    def creates_processes_externally(self) -> bool:
        """Return True, because torch_xla.launch starts all processes."""
        return True

    @property
    def world_size(self) -> int:
        """Number of addresses in TPU_PROCESS_ADDRESSES, or 1 if the variable is not set and XLA uses the CPU.

        Raises:
            UsageError: If TPU_PROCESS_ADDRESSES is not set and XLA does not use the CPU.
        """
        return len(self._addresses())

    @property
    def global_rank(self) -> int:
        """Value of CLOUD_TPU_TASK_ID, or 0 if the variable is not set and XLA uses the CPU."""
        return self.number(_RANK, default=0 if self._is_on_cpu else None, below=self.world_size)

    @property
    def local_rank(self) -> int:
        """Value of PJRT_LOCAL_PROCESS_RANK."""
        return self.number(_LOCAL_RANK, below=self.local_world_size)

    @property
    def local_world_size(self) -> int:
        """Value of PJRT_LOCAL_PROCESS_COUNT. If XLA uses the CPU, the variable may be missing, and the value is then 1."""
        return self.number(_LOCAL_SIZE, least=1, default=1 if self._is_on_cpu else None)

    @property
    def node_rank(self) -> int:
        """Rank of this machine: ``global_rank // local_world_size``. Every machine has the same number of processes."""
        return self.global_rank // self.local_world_size

    @property
    def num_nodes(self) -> int:
        """Number of machines: ``world_size / local_world_size``, because every machine has the same number of processes.

        If the variables contradict each other and the quotient is not whole, it is rounded up.
        """
        return -(-self.world_size // self.local_world_size)

    @property
    def main_address(self) -> str:
        """Value of MASTER_ADDR or, if that is not set, the host in the first address of TPU_PROCESS_ADDRESSES.

        If neither variable is set and XLA uses the CPU, the value is ``localhost``.
        """
        return self.address("MASTER_ADDR", default=self._addresses()[0].rpartition(":")[0])

    @property
    def main_port(self) -> int:
        """Value of MASTER_PORT, else torch_xla's default port, 12355."""
        return self.port("MASTER_PORT", default=_PORT)

    @property
    def _is_on_cpu(self) -> bool:
        """Whether XLA uses the CPU. If so, torch_xla.launch runs the program in one process and does not set the variables for TPUs."""
        return self.environ.get("PJRT_DEVICE", "").upper() == "CPU"

    def _addresses(self) -> list[str]:
        written = self.text(_ADDRESSES) or ("localhost:0" if self._is_on_cpu else "")
        addresses = [part for part in written.split(",") if part]
        if not addresses:
            raise self._error(f"{_ADDRESSES} is not set", "counts the processes of the job in it")
        return addresses
