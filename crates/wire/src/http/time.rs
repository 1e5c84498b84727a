//! Times as text: RFC 3339 with milliseconds in UTC.

use std::fmt;

use model::WallTime;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// A moment, like `2026-11-15T12:00:30.000Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-11-15T12:00:30.000Z")]
pub struct Time(pub WallTime);

impl Time {
    /// The moment that `text` says. One before 1970 counts as 1970, one after 9999 is refused.
    pub fn parse(text: &str) -> Option<Time> {
        let millis = match text.parse::<jiff::Timestamp>() {
            Ok(timestamp) => timestamp.as_millisecond(),
            Err(_) => last_day(text)?,
        };
        Some(Time(WallTime::from_millis(u64::try_from(millis).unwrap_or(0))))
    }

    /// Its 24 characters.
    fn write(self) -> [u8; 24] {
        let millis = self.0.millis();
        let (year, month, day) = civil(millis / 86_400_000);
        let of_day = millis % 86_400_000;
        let mut out = *b"0000-00-00T00:00:00.000Z";
        digits(&mut out[0..4], year);
        digits(&mut out[5..7], month);
        digits(&mut out[8..10], day);
        digits(&mut out[11..13], of_day / 3_600_000);
        digits(&mut out[14..16], of_day / 60_000 % 60);
        digits(&mut out[17..19], of_day / 1000 % 60);
        digits(&mut out[20..23], of_day % 1000);
        out
    }
}

/// Milliseconds since 1970 of a moment in the last hours of the year 9999, which a timestamp of jiff does
/// not reach: it keeps room for every time zone.
fn last_day(text: &str) -> Option<i64> {
    let pieces = jiff::fmt::temporal::Pieces::parse(text).ok()?;
    let offset = pieces.to_numeric_offset()?;
    let local = pieces.date().to_datetime(pieces.time()?);
    let since = local.duration_since(jiff::civil::DateTime::constant(1970, 1, 1, 0, 0, 0, 0));
    i64::try_from(since.as_millis()).ok()?.checked_sub(i64::from(offset.seconds()) * 1_000)
}

fn digits(out: &mut [u8], mut number: u64) {
    for place in out.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Year, month and day of a count of days since 1970, by eras of 400 years that begin on 1 March.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

impl From<WallTime> for Time {
    fn from(time: WallTime) -> Time {
        Time(time)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.write()).expect("digits and marks are ASCII"))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(std::str::from_utf8(&self.write()).expect("digits and marks are ASCII"))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        deserializer.deserialize_str(TimeVisitor)
    }
}

struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time in RFC 3339, up to the year 9999, like 2026-11-15T12:00:30.000Z")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
        Time::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_the_same_after_a_round_trip() {
        for (text, millis) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T23:59:59.999Z", 951_868_799_999),
            ("2026-11-15T12:00:30.001Z", 1_794_744_030_001),
            ("2100-03-01T00:00:00.000Z", 4_107_542_400_000),
            ("9999-12-31T00:00:00.000Z", WallTime::MAX.millis() - 86_399_999),
            ("9999-12-31T23:59:59.999Z", WallTime::MAX.millis()),
        ] {
            let time = Time(WallTime::from_millis(millis));
            assert_eq!(time.to_string(), text);
            assert_eq!(Time::parse(text), Some(time));
        }
        assert_eq!(Time(WallTime::MAX).to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn every_day_agrees_with_the_calendar() {
        for day in (0..2_932_896u64).step_by(17) {
            let time = Time(WallTime::from_millis(day * 86_400_000));
            let jiff = jiff::Timestamp::from_millisecond((day * 86_400_000) as i64).unwrap();
            assert_eq!(time.to_string()[..10], jiff.to_string()[..10]);
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for (what, text) in [
            ("empty", ""),
            ("a number", "12"),
            ("no zone", "2026-11-15T12:00:30"),
            ("year 10000", "10000-01-01T00:00:00Z"),
            ("year 10000 with a sign", "+010000-01-01T00:00:00Z"),
            ("month 13", "2026-13-01T00:00:00Z"),
        ] {
            assert_eq!(Time::parse(text), None, "{what}");
        }
        assert_eq!(Time::parse("1912-06-23T00:00:00Z"), Some(Time(WallTime::from_millis(0))));
        assert!(Time::parse("2026-11-15T12:00:30+02:00").is_some());
        let later = Time::parse("9999-12-31T23:59:59.999-01:00");
        assert_eq!(later, Some(Time(WallTime::MAX)), "held at the last moment");
        assert_eq!(Time::parse("9999-12-31T23:59:59"), None, "no zone");
    }
}
