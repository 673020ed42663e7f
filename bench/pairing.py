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

    def without(self, other: "Pairs") -> "Pairs":
        """This B with the other's B as its A; both were measured together."""
        return Pairs([(a, b) for (_, a), (_, b) in zip(other.rounds, self.rounds)])


def against(base: Callable[[], Outcome], others: Sequence[Callable[[], Outcome]], rounds: int) -> list[Pairs]:
    """Compares each of the others with one base. A round runs all of them forwards and then backwards (A, B, B, A if
    there is one other), so that a drift of the machine's speed cancels within it."""
    results: list[Pairs] = [Pairs([]) for _ in others]
    for _ in range(rounds):
        forwards = [run() for run in (base, *others)]
        backwards = [run() for run in (*reversed(others), base)]
        for number, result in enumerate(results):
            b = forwards[number + 1], backwards[len(others) - 1 - number]
            result.rounds.append(((forwards[0], backwards[-1]), b))
    return results


def pair(run_a: Callable[[], Outcome], run_b: Callable[[], Outcome], rounds: int) -> Pairs:
    """Compares B with A."""
    (pairs,) = against(run_a, [run_b], rounds)
    return pairs
