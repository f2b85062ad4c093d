"""Kubeflow: a pod of a PyTorchJob (Training Operator, v1) or of a TrainJob (Trainer, v2), with one process per pod."""

from __future__ import annotations

from collections.abc import Mapping

from accelkit import ClusterDetection, ClusterEnvironment, ContradictionError

_PODS, _INDEX = ("PET_NNODES", "WORLD_SIZE"), ("PET_NODE_RANK", "RANK")
_ADDRESS, _PORT = ("PET_MASTER_ADDR", "MASTER_ADDR"), ("PET_MASTER_PORT", "MASTER_PORT")


class KubeflowEnvironment(ClusterEnvironment):
    """The environment of a process that runs alone in a pod of a Kubeflow PyTorchJob (v1) or TrainJob (v2).

    Protocol: v1 (kubeflow/training-operator, pkg/controller.v1/pytorch/envvar.go) sets RANK (the rank of the pod), WORLD_SIZE (the number
    of pods, multiplied by nprocPerNode in newer versions), MASTER_ADDR, MASTER_PORT and the PET_* variables. v2 (kubeflow/trainer,
    pkg/runtime/framework/plugins/torch) sets only PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT. The
    PET_* variables are meant for torchrun. If the command of the pod is torchrun, torchrun may start several processes in the pod. This
    environment does not describe these processes, because torchrun sets variables of its own, which the cluster environment
    ``torchelastic`` reads.
    """

    launcher = "torchrun, which reads the PET_* variables, or as one process per pod"
    processes_flag = "nprocPerNode: {} (numProcPerNode in v2) and torchrun as the command"
    nodes_flag = "{} pods (replicas in v1, numNodes in v2)"

    def detect_cluster(self, environ: Mapping[str, str]) -> ClusterDetection | None:
        """Return a claim (a ``ClusterDetection``) that ranks below the claims of all launchers, because a launcher may run in the pod.

        Return None if this process is not in a pod of a PyTorchJob or a TrainJob.
        """
        if not (environ.get("KUBERNETES_SERVICE_HOST") or environ.get("KUBERNETES_PORT")):
            return None
        if environ.get("RANK") and environ.get("WORLD_SIZE") and environ.get("MASTER_ADDR"):
            return ClusterDetection("kubeflow", 30, "RANK, WORLD_SIZE and MASTER_ADDR in a Kubernetes pod: this is a PyTorchJob")
        if environ.get("PET_NNODES"):
            return ClusterDetection("kubeflow", 30, "PET_NNODES in a Kubernetes pod: this is a TrainJob or an elastic PyTorchJob")
        return None

    @property
    def creates_processes_externally(self) -> bool:
        """True: Kubernetes started the pods."""
        return True

    @property
    def world_size(self) -> int:
        """Number of pods, each of which has one process. Read from PET_NNODES, else WORLD_SIZE.

        Raises:
            ContradictionError: If the job requests several processes per pod, or lets the number of pods change. Both require torchrun.
        """
        wanted, pods = self.text("PET_NPROC_PER_NODE"), self.text("PET_NNODES")
        if pods is not None and ":" in pods:
            raise self._for_torchrun(f"PET_NNODES={pods:.40} is a range, so the number of pods may change")
        if wanted not in (None, "1", "auto", "cpu", "gpu"):
            number = self.number("PET_NPROC_PER_NODE", least=1)
            raise self._for_torchrun(f"PET_NPROC_PER_NODE={number} requests {number} processes per pod, but this pod runs one")
        return self.number(*_PODS, least=1)

    @property
    def global_rank(self) -> int:
        """Rank of the pod. Read from PET_NODE_RANK, else RANK."""
        return self.number(*_INDEX, below=self.world_size)

    @property
    def node_rank(self) -> int:
        """Rank of the pod."""
        return self.global_rank

    @property
    def num_nodes(self) -> int:
        """Number of pods."""
        return self.world_size

    @property
    def main_address(self) -> str:
        """Address of the first pod's service. Read from PET_MASTER_ADDR, else MASTER_ADDR."""
        return self.address(*_ADDRESS)

    @property
    def main_port(self) -> int:
        """Value of PET_MASTER_PORT, else MASTER_PORT. The pod has its own network, so no other job uses the port."""
        return self.port(*_PORT)

    def _for_torchrun(self, what: str) -> ContradictionError:
        return ContradictionError(
            what,
            plugin=self.plugin,
            why="the PET_* variables are meant for torchrun, which did not start this process",
            hint="use torchrun instead of python as the command of the pod",
        )
