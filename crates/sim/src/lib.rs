//! The proof: what clients saw of a run, and whether the promises of the house held.
//!
//! [`history`] is the record that producers, workers and nodes leave, in the simulator and in real
//! runs; [`check`] holds the promises against it. Nothing here knows how a run was made: it reads what
//! was said, and says what cannot have been. Next: `docs/formats/history.md`.

pub mod check;
pub mod history;
