//! The life of a cluster: how it is made, how nodes join and leave it, who votes and who leads.
//!
//! A start goes by what is on the disk (`identity.rs`) and by what the others say (`probe.rs` asks,
//! `standing.rs` answers, `begin.rs` decides, `open.rs` opens the groups). From then on the catalog says who is part of the cluster: its leader decides
//! who votes (`keeper.rs` by the rule in `voters.rs`), the leader of each group makes it so (`members.rs` by
//! the rule in `reconcile.rs`), and leaders move gently to where they belong (`spread.rs`). What people ask
//! for is in `admin.rs`.
//!
//! What must never happen here: a node that lost its disk gets a copy of a group under an incarnation that it
//! had before, or a group is begun with anybody but its founders in their first life.

pub(crate) mod admin;
pub(crate) mod begin;
pub(crate) mod identity;
pub(crate) mod keeper;
pub(crate) mod members;
pub(crate) mod open;
pub(crate) mod probe;
pub(crate) mod reconcile;
pub(crate) mod spread;
pub(crate) mod standing;
pub(crate) mod voters;

pub use admin::JoinHint;
