//! When the next sample is due, and what one stands for.
