//! What holds of the code and of the tests themselves.

#[path = "../support/mod.rs"]
mod support;

mod layers;
mod leftovers;
