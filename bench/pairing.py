"""Compares runs in pairs, so that what else the machine does hits both sides alike."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from bench.running import Outcome

Metric = Callable[[Outcome], float]


def process_cpu_s(outcome: Outcome) -> float:
    """All threads, start and end."""
    return outcome.cpu_s


def work_cpu_s(outcome: Outcome) -> float:
    """The measured part of the program's own threads, which it tells itself."""
    return outcome.told("cpu_s")


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        if len(values) < 2:
            return Spread(values[0], values[0], values[0])
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(statistics.median(values), low, high)

    def scaled(self, factor: float) -> "Spread":
        """All three, multiplied."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Rounds of A, B, B, A, each as (both A, both B)."""

    rounds: list[tuple[tuple[Outcome, Outcome], tuple[Outcome, Outcome]]]

    def ratio(self, metric: Metric) -> Spread:
        """B over A."""
        return Spread.of([sum(map(metric, b)) / sum(map(metric, a)) for a, b in self.rounds])

    def difference(self, metric: Metric) -> Spread:
        """B less A, for one run."""
        return Spread.of([(sum(map(metric, b)) - sum(map(metric, a))) / 2 for a, b in self.rounds])


def pair(run_a: Callable[[], Outcome], run_b: Callable[[], Outcome], rounds: int) -> Pairs:
    """Runs A, B, B, A, then B, A, A, B, and so on: a drift of the machine's speed cancels within each round."""
    done = []
    for number in range(rounds):
        if number % 2 == 0:
            a1, b1, b2, a2 = run_a(), run_b(), run_b(), run_a()
        else:
            b1, a1, a2, b2 = run_b(), run_a(), run_a(), run_b()
        done.append(((a1, a2), (b1, b2)))
    return Pairs(done)
