//! What a committed command does to a shard or to the catalog.
//!
//! Pure: no clock, no randomness, no IO, no async, no leader, no payload. Time comes with the command.
//! Start at [`Shard::apply`], the table of contents; each verb has its own file in `shard/`.

mod catalog;
pub mod effects;
pub mod machine;
mod shard;
pub mod view;

pub use catalog::Catalog;
pub use effects::{Effect, Effects, Slot};
pub use machine::{Change, Damaged, Machine, NextDue, Table};
pub use shard::{Shard, backoff};
