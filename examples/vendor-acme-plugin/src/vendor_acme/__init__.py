from accelkit import Accelerator, Availability


class AcmeSimulator(Accelerator):
    """ACME's simulated accelerator: it computes on the CPU, and auto never chooses it."""

    device_type = "cpu"
    is_simulated = True

    @classmethod
    def probe(cls) -> Availability:
        return Availability.usable("simulated: no ACME hardware is needed")
