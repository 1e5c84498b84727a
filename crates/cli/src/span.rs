//! Lengths of time as people write them: `500ms`, `5s`, `5m`, `2h`, `3d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A length of time in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(u64);

impl Span {
    pub(crate) fn millis(self) -> u64 {
        self.0
    }

    pub(crate) fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl From<Duration> for Span {
    fn from(time: Duration) -> Span {
        Span(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let wrong = || format!("{text:?} is no length of time: write it like 500ms, 5s, 5m, 2h or 3d");
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let unit_millis = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            // A bare 0 needs no unit; any other bare number would leave us guessing.
            "" if number == "0" => 1,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        number.checked_mul(unit_millis).map(Span).ok_or_else(|| format!("{text:?} is too long a time"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, millis) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
            if self.0 >= millis && self.0.is_multiple_of(millis) {
                return write!(f, "{}{unit}", self.0 / millis);
            }
        }
        write!(f, "{}ms", self.0)
    }
}

/// Milliseconds as a person reads them at a glance: `850 ms`, `12 s`, `4 min`, `3 h`, `2 d`.
pub(crate) fn about(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..120_000 => format!("{} s", millis / 1_000),
        120_000..7_200_000 => format!("{} min", millis / 60_000),
        7_200_000..172_800_000 => format!("{} h", millis / 3_600_000),
        _ => format!("{} d", millis / 86_400_000),
    }
}

/// A size in bytes: `1048576`, `64KiB`, `512MiB`, `2GiB`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: write it like 1048576, 64KiB, 512MiB or 2GiB");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit_bytes: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(wrong()),
    };
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit_bytes)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_and_written_alike() {
        for (text, millis) in [
            ("500ms", Some(500)),
            ("5s", Some(5_000)),
            ("5m", Some(300_000)),
            ("2h", Some(7_200_000)),
            ("3d", Some(259_200_000)),
            ("0", Some(0)),
            ("5", None),
            ("", None),
            ("ms", None),
            ("-5s", None),
            ("1.5s", None),
            ("5 s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
        ] {
            let span = text.parse::<Span>().ok();
            assert_eq!(span.map(Span::millis), millis, "{text:?}");
            if let Some(span) = span.filter(|_| text != "0") {
                assert_eq!(span.to_string(), text);
            }
        }
    }

    #[test]
    fn sizes_are_read_with_binary_units_only() {
        for (text, bytes) in [
            ("1048576", Some(1 << 20)),
            ("64KiB", Some(64 << 10)),
            ("2GiB", Some(2 << 30)),
            ("2GB", None),
            ("", None),
            ("99999999999TiB", None),
        ] {
            assert_eq!(parse_bytes(text).ok(), bytes, "{text:?}");
        }
    }
}
