//! Answers from a profile: totals, functions, sites.
