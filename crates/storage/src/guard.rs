//! redb takes the pages of its file for what it once wrote, and panics over those that no crash can leave.
//! Here such a panic is damage of that file, told in words.
//!
//! A panic inside one of redb's locks is followed by another while the first unwinds, and no code can go on after that: the
//! process ends. Its panic hook, which hears of both, asks [`panicked`] and can say why.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::error::{Error, Result};

thread_local! {
    static NOW: Cell<Work> = const { Cell::new(Work { is_guarded: false, has_panicked: false }) };
    static WORKS: Cell<u64> = const { Cell::new(0) };
    static REFUSED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// What this thread does now.
#[derive(Clone, Copy)]
struct Work {
    is_guarded: bool,
    has_panicked: bool,
}

/// What a panic comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panicked {
    /// This crate knows nothing of it.
    Unguarded,
    /// It becomes an [`Error::Damaged`]: a hook may keep silent.
    Told,
    /// It follows one of those, and the process ends with it: a hook has the last word. `work` is the number of what this
    /// thread was doing, for [`refuse`].
    Last {
        /// How many works of this kind the thread had begun.
        work: u64,
    },
}

/// What a panic of this thread comes to, for the process's panic hook. It must ask once for each.
pub fn panicked() -> Panicked {
    let now = NOW.get();
    match (now.is_guarded, now.has_panicked) {
        (false, _) => Panicked::Unguarded,
        (true, false) => {
            NOW.set(Work { has_panicked: true, ..now });
            Panicked::Told
        }
        (true, true) => Panicked::Last { work: WORKS.get() },
    }
}

/// What to say before a [`Panicked::Last`] ends the process.
pub const LAST_WORDS: &str = "the pages of a checkpoint contradict each other, and this process cannot go on: `windlass check` on \
                              the data directory names the file; restore it from a backup, or move the data directory away and \
                              let this node join again and fetch its data from its peers";

/// In this thread the work of this number finds damage, without beginning. For a simulation, whose nodes share a process: what
/// would end that is met as damage in another run of the same seed.
pub fn refuse(work: u64) {
    REFUSED.with_borrow_mut(|refused| refused.push(work));
}

/// Works on a checkpoint's file. What it leaves behind after a panic must not be used again.
pub(crate) fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    WORKS.set(WORKS.get() + 1);
    if REFUSED.with_borrow(|refused| refused.contains(&WORKS.get())) {
        // What it holds may panic as it goes.
        std::mem::forget(work);
        return Err(damaged(path, &"a panic that nothing outlives"));
    }
    let outer = NOW.replace(Work { is_guarded: true, has_panicked: false });
    let outcome = catch_unwind(AssertUnwindSafe(work));
    NOW.set(outer);
    outcome.unwrap_or_else(|panic| Err(damaged(path, &*panic)))
}

fn damaged(path: &Path, panic: &(dyn Any + Send)) -> Error {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no word");
    let what = format!("its pages contradict each other ({said})");
    Error::Damaged { path: path.to_owned(), offset: 0, what }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Panics again while it goes.
    struct PanicsToo;

    impl Drop for PanicsToo {
        fn drop(&mut self) {
            panic!("a lock is poisoned");
        }
    }

    const CHILD: &str = "WINDLASS_TEST_PANICS_TWICE";

    #[test]
    fn a_panic_that_nothing_outlives_leaves_the_last_word_to_the_hook() {
        if std::env::var_os(CHILD).is_some() {
            std::panic::set_hook(Box::new(|_| {
                if let Panicked::Last { work } = panicked() {
                    std::process::exit(40 + work as i32);
                }
            }));
            let caught = guarded(Path::new("a"), || -> Result<()> { panic!("the first") });
            assert!(caught.unwrap_err().to_string().contains("the first"));
            let _ = guarded(Path::new("b"), || -> Result<()> {
                let _too = PanicsToo;
                panic!("the second");
            });
            unreachable!("nothing outlives it");
        }
        let name = "guard::tests::a_panic_that_nothing_outlives_leaves_the_last_word_to_the_hook";
        let child =
            Command::new(std::env::current_exe().unwrap()).args(["--exact", name]).env(CHILD, "1").output();
        assert_eq!(child.unwrap().status.code(), Some(42));
    }

    #[test]
    fn work_that_is_refused_does_not_begin() {
        refuse(WORKS.get() + 2);
        assert!(guarded(Path::new("a"), || Ok(())).is_ok());
        let refused = guarded(Path::new("a"), || -> Result<()> { unreachable!("it was refused") });
        assert!(matches!(refused, Err(Error::Damaged { .. })));
        assert!(guarded(Path::new("a"), || Ok(())).is_ok());
    }
}
