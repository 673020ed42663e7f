//! A profile as tables, for SQL and for Parquet.
//!
//! [`tables`] says what the tables are and what their columns mean, once; [`Database`] answers SQL over them, [`parquet`]
//! writes them. `docs/queries.md` describes them for users.
#![forbid(unsafe_code)]

mod answer;
mod block;
mod database;
mod index;
pub mod parquet;
mod rows;
mod table;

pub use answer::{Answer, Format};
pub use database::{Database, QueryError};
pub use table::{Column, Kind, Table, Value, tables};
