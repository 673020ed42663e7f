//! A profile in other people's formats.
