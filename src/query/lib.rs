//! A profile as tables, for SQL and for Parquet.
//!
//! [`tables`] says what the tables are and what their columns mean, once; [`Database`] answers SQL over them, [`parquet`]
//! writes them. `docs/queries.md` describes them for users.
#![deny(unsafe_code)]

mod answer;
mod column;
mod database;
mod index;
mod order;
pub mod parquet;
mod reader;
mod table;
mod virtual_table;

pub use answer::{Answer, Format};
pub use column::{Column, Kind};
pub use database::{Database, QueryError};
pub use table::{SCHEMA_VERSION, Table, tables};
