//! Writes the seeds of every target into a directory each: where `fuzz-run` begins to look.
#![allow(clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(root) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("fuzz-seeds: say where to write them: fuzz-seeds DIR");
        return ExitCode::from(2);
    };
    for target in fuzz::TARGETS {
        let dir = root.join(target.name);
        let written = std::fs::create_dir_all(&dir).and_then(|()| {
            (target.seeds)()
                .iter()
                .enumerate()
                .try_for_each(|(n, seed)| std::fs::write(dir.join(format!("seed-{n:03}")), seed))
        });
        if let Err(error) = written {
            eprintln!("fuzz-seeds: cannot write {}: {error}", dir.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
