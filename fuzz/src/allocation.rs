//! Counts the memory that a piece of work takes, so that a target can say how much is too much.
//!
//! Counts per thread: work that hands memory to another thread is not measured by this.

// An allocator cannot be written otherwise.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has taken and not given back. Below zero when it gave back what others took.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// The most that was so.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counted.
pub(crate) struct Counting;

fn count(bytes: isize) {
    // A thread that ends may have no counters any more.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call goes to the system's allocator as it came; counting takes no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes as isize - layout.size() as isize);
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

/// Does the work, and panics when it took more than so many bytes at any moment.
pub(crate) fn within<T>(bytes_max: usize, work: impl FnOnce() -> T) -> T {
    let before = LIVE.get();
    PEAK.set(before);
    let done = work();
    let taken = usize::try_from(PEAK.get() - before).unwrap_or(0);
    assert!(taken <= bytes_max, "it took {taken} bytes, {bytes_max} are allowed");
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_given_back_counts_too() {
        within(1 << 20, || drop(vec![1u8; 1000]));
        let too_much =
            std::panic::catch_unwind(|| within(100, || drop(std::hint::black_box(vec![1u8; 1000]))));
        assert!(too_much.is_err());
    }
}
