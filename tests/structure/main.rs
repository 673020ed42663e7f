//! What holds of the code and of the tests themselves.

#[path = "../support/mod.rs"]
mod support;

mod example;
mod layers;
mod leftovers;
