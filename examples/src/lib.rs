//! Small programs to copy from, one for each thing that a queue is asked for: see `src/bin` and `README.md`. Here is
//! what they share: where the server is.
//!
//! The Rust of the guide is compiled and run here, too, as this crate's documentation; `crates/cli/tests/guide.rs` runs
//! the rest of it.

/// Where the server is: `--server URL[,URL…]`, else `WINDLASS_SERVER`, else where `windlass dev` listens.
pub fn server() -> String {
    let flag = std::env::args().skip_while(|arg| arg != "--server").nth(1);
    let server = flag.or_else(|| std::env::var("WINDLASS_SERVER").ok());
    server.unwrap_or_else(|| "http://127.0.0.1:7420".to_owned())
}

/// The pages of the guide that have Rust on them.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../docs/guide/first-task.md")]
    struct FirstTask;
    #[doc = include_str!("../../docs/guide/retries.md")]
    struct Retries;
    #[doc = include_str!("../../docs/guide/ordering.md")]
    struct Ordering;
    #[doc = include_str!("../../docs/guide/idempotency.md")]
    struct Idempotency;
    #[doc = include_str!("../../docs/guide/long-tasks.md")]
    struct LongTasks;
    #[doc = include_str!("../../docs/guide/shutdown.md")]
    struct Shutdown;
    #[doc = include_str!("../../docs/guide/testing.md")]
    struct Testing;
}
