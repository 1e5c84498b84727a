//! Runs one target under libFuzzer: `WINDLASS_FUZZ_TARGET` says which, the arguments are libFuzzer's.
#![no_main]
// The entry that libFuzzer calls has a name that is not mangled.
#![allow(unsafe_code, missing_docs)]

use std::sync::LazyLock;

static TARGET: LazyLock<&fuzz::Target> = LazyLock::new(|| {
    let name = std::env::var("WINDLASS_FUZZ_TARGET").unwrap_or_default();
    fuzz::target(&name).unwrap_or_else(|| panic!("WINDLASS_FUZZ_TARGET={name:?} is no target"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
