//! `windlass`: the one binary. A server, a worker and a client, by the verb it is given.
//!
//! Each verb has its file. Never holds logic that a library user would want: that is in `node` and
//! `server`. Start with `dev.rs` for the server side, with `enqueue.rs` for the client side.

mod ack;
mod bench;
mod check;
mod claim;
mod claims;
mod client;
mod cluster;
mod completions;
mod config_file;
mod connection;
mod dead;
mod demo;
mod demo_faults;
mod dev;
mod enqueue;
mod env;
mod exit;
mod fail;
mod fleet;
mod json;
mod log;
mod output;
mod peers;
mod queue;
mod scratch;
mod select;
mod serve;
mod settings;
mod span;
mod stdin_end;
mod task;
mod weighted;
mod work;
mod worker;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A replicated task queue: one binary, no database beside it.
#[derive(Parser, Debug)]
#[command(name = "windlass", version, propagate_version = true, disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 denied, 5 conflict, 6 no leader, \
                        7 timeout, 8 the awaited task failed."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Dev(dev::Dev),
    Serve(serve::Serve),
    Enqueue(enqueue::Enqueue),
    Claim(claim::Claim),
    Ack(ack::Ack),
    Fail(fail::Fail),
    Work(work::Work),
    Task(task::Task),
    Claims(claims::Claims),
    Queue(queue::Queue),
    Dead(dead::Dead),
    Worker(worker::Worker),
    Cluster(cluster::Cluster),
    Check(check::Check),
    Bench(bench::Bench),
    Completions(completions::Completions),
    #[command(hide = true)]
    DemoFaults(demo_faults::DemoFaults),
}

fn main() -> ExitCode {
    if let Some(code) = work::child::run_if_asked() {
        return code;
    }
    silence_what_is_told_in_words();
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match exit::code_of(&error) {
            Some(code) => {
                let _ = output::note(&format!("windlass: {error:#}"));
                code
            }
            None => ExitCode::SUCCESS,
        },
    }
}

/// A panic over a damaged checkpoint becomes an error that says what to do, or, where nothing outlives it, the last words of
/// this process.
fn silence_what_is_told_in_words() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match storage::panicked() {
        storage::Panicked::Unguarded => loud(panic),
        storage::Panicked::Told => {}
        storage::Panicked::Last { .. } => {
            // Not every verb has a log.
            let _ = output::note(&format!("windlass: {}", storage::LAST_WORDS));
            std::process::exit(storage::FATAL_EXIT_CODE);
        }
    }));
}

fn run(cli: Cli) -> Result<()> {
    // A client does one thing at a time; only a server needs the threads.
    let client = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let server = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match cli.verb {
        Verb::Dev(args) => server()?.block_on(dev::run(args)),
        Verb::Serve(args) => server()?.block_on(serve::run(args)),
        Verb::Enqueue(args) => client()?.block_on(enqueue::run(args)),
        Verb::Claim(args) => client()?.block_on(claim::run(args)),
        Verb::Ack(args) => client()?.block_on(ack::run(args)),
        Verb::Fail(args) => client()?.block_on(fail::run(args)),
        Verb::Work(args) => client()?.block_on(work::run(args)),
        Verb::Task(args) => client()?.block_on(task::run(args)),
        Verb::Claims(args) => client()?.block_on(claims::run(args)),
        Verb::Queue(args) => client()?.block_on(queue::run(args)),
        Verb::Dead(args) => client()?.block_on(dead::run(args)),
        Verb::Worker(args) => client()?.block_on(worker::run(args)),
        Verb::Cluster(args) => client()?.block_on(cluster::run(args)),
        Verb::Check(args) => check::run(&args),
        // One thread: the servers need the other cores more than the client does.
        Verb::Bench(args) => client()?.block_on(bench::run(args)),
        Verb::DemoFaults(args) => server()?.block_on(demo_faults::run(args)),
        Verb::Completions(args) => completions::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_free_of_contradictions() {
        super::Cli::command().debug_assert();
    }
}
