"""The benchmark behind docs/cost.md; scripts/bench is its command."""
