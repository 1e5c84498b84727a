//! redb takes the pages of its file for what it once wrote, and panics over those that no crash can leave.
//! Here such a panic is damage of that file, told in words.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::error::{Error, Result};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread would now become an [`Error::Damaged`]: a panic hook may keep silent.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

/// Works on a checkpoint's file. What it leaves behind after a panic must not be used again.
pub(crate) fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let outer = GUARDED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    outcome.unwrap_or_else(|panic| Err(damaged(path, &*panic)))
}

fn damaged(path: &Path, panic: &(dyn Any + Send)) -> Error {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no word");
    let what = format!("its pages contradict each other ({said})");
    Error::Damaged { path: path.to_owned(), offset: 0, what }
}
