//! Lengths of time and sizes, as people write them on the command line.

use crate::span::{Span, about, parse_bytes};
use crate::{allocation, says_why};

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    ["500ms", "5s", "5m", "2h", "3d", "0", "64KiB", "512MiB", "2GiB", "1TiB", "18446744073709551615ms"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let bytes_max = 4 * 1024 + 16 * text.len();
    match allocation::within(bytes_max, || text.parse::<Span>()) {
        Ok(span) => {
            // What is longer than a number has fallen out; what is left is written in the largest whole unit.
            assert_eq!(span.to_string().parse(), Ok(span), "{text:?}");
            assert_eq!(span.duration().as_millis(), u128::from(span.millis()));
            assert!(!about(span.millis()).is_empty());
        }
        Err(why) => assert!(!why.is_empty()),
    }
    match allocation::within(bytes_max, || parse_bytes(text)) {
        Ok(size) => assert_eq!(parse_bytes(&size.to_string()), Ok(size), "{text:?}"),
        Err(why) => assert!(!why.is_empty()),
    }
    if text.len() < 1024 {
        text.parse::<Span>().err().into_iter().for_each(|why| says_why(&why));
    }
}
