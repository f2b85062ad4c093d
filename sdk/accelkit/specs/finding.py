"""A mistake that a static check reports.

``Finding`` is in a module of its own, so that code that reads findings does not import the checks.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A mistake in the class of a plugin.

    Attributes:
        rule: The name of the rule that found the mistake.
        what: A statement of the mistake, with the names of the class and the member, such as ``Acme.device_type is not set``.
        why: The reason why ``what`` is a mistake.
        hint: What the vendor should write.
    """

    rule: str
    what: str
    why: str
    hint: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.hint}"
