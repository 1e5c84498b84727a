//! `windlass completions`: a script that teaches a shell our verbs.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(
    after_help = "For bash: windlass completions bash > ~/.local/share/bash-completion/completions/windlass"
)]
pub(crate) struct Completions {
    /// For this shell
    shell: Shell,
}

pub(crate) fn run(args: &Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "windlass", &mut script);
    crate::output::print(String::from_utf8_lossy(&script).trim_end())
}
