//! The proof: whole clusters in simulated time, what clients saw of a run, and whether the promises of the house held.
//!
//! [`world`] makes runs; [`history`] is the record that producers, workers and nodes leave, in the simulator and in
//! real runs; [`check`] holds the promises against it and knows nothing of how a run was made. [`fleet`] makes many
//! runs, each in a process of its own. Next: `docs/formats/history.md`, `docs/decisions/0019-simulator.md`.

pub mod check;
pub mod fleet;
pub mod history;
pub mod mutants;
pub mod world;

use model::mutant::{self, Mutant};

/// Plants a bug by its name, in this process.
pub fn plant(name: &str) -> Result<(), String> {
    let names = || Mutant::ALL.iter().map(|mutant| mutant.name()).collect::<Vec<_>>().join(", ");
    let Some(mutant) = Mutant::from_name(name) else {
        return Err(format!("there is no bug {name:?}: there are {}", names()));
    };
    match mutant::plant(mutant) {
        true => Ok(()),
        false => {
            Err(format!("no bug can be planted in this build ({name:?}): build it with --features mutants"))
        }
    }
}
