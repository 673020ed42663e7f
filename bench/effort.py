"""How much is measured."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Effort:
    """The whole benchmark, or the two-minute version."""

    is_quick: bool

    @property
    def rounds(self) -> int:
        """Of A, B, B, A."""
        return 3 if self.is_quick else 5

    @property
    def few_rounds(self) -> int:
        """The same for what takes long or differs by much."""
        return 1 if self.is_quick else 3

    @property
    def many_rounds(self) -> int:
        """The same for what is short, and differs from process to process: by where its pages happen to lie."""
        return 3 if self.is_quick else 8

    def scaled(self, amount: int) -> int:
        """A number of operations."""
        return amount // 2 if self.is_quick else amount
