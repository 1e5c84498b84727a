//! From a body's bytes to a request: UTF-8, depth, JSON, in this order.
//!
//! Nothing here looks into the world: a request that passes may still be refused by the state.

use std::fmt;
use std::marker::PhantomData;

use model::{InvalidName, limits};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// What is wrong with a request, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

impl Invalid {
    /// With this text: lower case, the fact, then what to do.
    pub fn new(text: impl Into<String>) -> Invalid {
        Invalid(text.into())
    }
}

impl From<InvalidName> for Invalid {
    fn from(error: InvalidName) -> Invalid {
        Invalid(error.to_string())
    }
}

/// How much is told of what is wrong with a body.
const REASON_BYTES_MAX: usize = 1024;

/// The body as text that is safe to parse: valid UTF-8, not nested too deep.
pub fn text(body: &[u8]) -> Result<&str, Invalid> {
    let text = std::str::from_utf8(body).map_err(|error| {
        Invalid(format!("the body is not UTF-8 from byte {}: send JSON in UTF-8", error.valid_up_to()))
    })?;
    check_depth(body)?;
    Ok(text)
}

/// Reads one request.
pub fn one<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Invalid> {
    read(text).map_err(|error| not_json(text, &error))
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text).map(|Object(value)| value)
}

/// A value that was written as an object. Without it a list of values in the order of the fields would pass
/// for one, and mean something else after the next field was added.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        object(deserializer).map(Object)
    }
}

/// Reads a value that must be an object. For `deserialize_with`.
pub fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_map(ObjectVisitor(PhantomData))
}

/// The same, but `null` is nothing. For `deserialize_with`, together with `default`.
pub fn object_or_null<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::<Object<T>>::deserialize(deserializer).map(|given| given.map(|Object(value)| value))
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

/// A request or a reply about one thing, or about many.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum OneOrMany<One, Many> {
    /// About one.
    One(One),
    /// About many.
    Many(Many),
}

/// Reads a request that is about many things when it has the field `many`.
pub fn one_or_many<'a, One, Many>(text: &'a str, many: &str) -> Result<OneOrMany<One, Many>, Invalid>
where
    One: Deserialize<'a>,
    Many: Deserialize<'a>,
{
    if first_field_is(text, many) {
        return one(text).map(OneOrMany::Many);
    }
    match read(text) {
        Ok(one) => Ok(OneOrMany::One(one)),
        Err(_) if has_field(text, many) => one(text).map(OneOrMany::Many),
        Err(error) => Err(not_json(text, &error)),
    }
}

/// Whether `text` begins as an object with this field: the common form of a list, told without a pass.
fn first_field_is(text: &str, name: &str) -> bool {
    let field = text.trim_start().strip_prefix('{').and_then(|rest| rest.trim_start().strip_prefix('"'));
    field.and_then(|rest| rest.strip_prefix(name)).is_some_and(|rest| rest.starts_with('"'))
}

/// Whether `text` is an object with a field of this name.
fn has_field(text: &str, name: &str) -> bool {
    use std::collections::BTreeMap;
    serde_json::from_str::<BTreeMap<String, &RawValue>>(text).is_ok_and(|fields| fields.contains_key(name))
}

/// Reads a list of objects and stops at the first item over `MAX`, so that a long one costs no memory.
///
/// For `deserialize_with`.
pub fn at_most<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    at_most_in_all::<MAX, T, D>(deserializer, |_| 0)
}

/// The same where each item has a list of its own, whose length `inner` tells: it stops also where all of these together
/// are longer than [`limits::MESSAGE_ITEMS_MAX`]. Short items would otherwise multiply to more than the memory holds.
pub fn at_most_in_all<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
    inner: fn(&T) -> usize,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(AtMost::<MAX, T> { inner })
}

/// Refuses a list that was read already and is too long.
pub fn check_at_most<T>(what: &str, list: &[T], max: usize) -> Result<(), Invalid> {
    if list.len() > max {
        return Err(Invalid(format!("{what} has more than {max} items: split it over several requests")));
    }
    Ok(())
}

struct AtMost<const MAX: usize, T> {
    inner: fn(&T) -> usize,
}

impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for AtMost<MAX, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        let mut left = limits::MESSAGE_ITEMS_MAX;
        while let Some(Object(item)) = items.next_element()? {
            if list.len() == MAX {
                return Err(de::Error::custom(format_args!(
                    "a list has more than {MAX} items: split it over several requests"
                )));
            }
            left = left.checked_sub((self.inner)(&item)).ok_or_else(|| {
                let max = limits::MESSAGE_ITEMS_MAX;
                de::Error::custom(format_args!(
                    "its lists have more than {max} items together: split it over several requests"
                ))
            })?;
            list.push(item);
        }
        Ok(list)
    }
}

fn not_json(text: &str, error: &serde_json::Error) -> Invalid {
    if text.trim().is_empty() {
        return Invalid::new("the body is empty: send a JSON object, see /docs");
    }
    // An unknown field is told by its name, which may be as long as the body.
    let error = error.to_string();
    let cut = error.floor_char_boundary(REASON_BYTES_MAX);
    let more = if cut < error.len() { "…" } else { "" };
    Invalid(format!("this request cannot be read: {}{more}; see /docs for its fields", &error[..cut]))
}

/// Refuses JSON that is nested deeper than [`limits::JSON_DEPTH_MAX`], before anything parses it.
fn check_depth(body: &[u8]) -> Result<(), Invalid> {
    // Too few brackets to nest too deep: true for nearly every body, and counted many bytes at a time.
    let opening = body.iter().filter(|&&byte| byte == b'[' || byte == b'{').count();
    if opening <= limits::JSON_DEPTH_MAX {
        return Ok(());
    }
    let mut depth = 0usize;
    let mut bytes = body.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth > limits::JSON_DEPTH_MAX {
                    let max = limits::JSON_DEPTH_MAX;
                    return Err(Invalid(format!("the JSON is nested deeper than {max} levels: flatten it")));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
    }
    Ok(())
}

fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct One {
        token: String,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Many {
        acks: Vec<One>,
    }

    #[test]
    fn depth_is_counted_outside_strings_only() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(text(deep(128).as_bytes()).is_ok());
        assert!(text(deep(129).as_bytes()).is_err());
        assert!(text(deep(1_000_000).as_bytes()).is_err());
        assert!(text(format!("[\"{}\"]", "[".repeat(500)).as_bytes()).is_ok());
        assert!(text(format!("[\"\\\"{}\"]", "{".repeat(500)).as_bytes()).is_ok());
        assert!(text(format!("[{}[]]", "[],".repeat(500)).as_bytes()).is_ok());
    }

    #[test]
    fn bytes_that_are_not_utf8_are_refused_with_their_place() {
        let error = text(b"{\"a\":\"\xff\"}").unwrap_err();
        assert!(error.0.contains("byte 6"), "{error}");
    }

    #[test]
    fn a_long_name_does_not_make_a_long_refusal() {
        let text = format!(r#"{{"{}":1}}"#, "é".repeat(100_000));
        let error = one::<One>(&text).unwrap_err();
        assert!(
            error.0.contains("unknown field `éé") && error.0.len() < 2 * REASON_BYTES_MAX,
            "{} bytes",
            error.0.len()
        );
    }

    #[test]
    fn a_list_of_values_does_not_pass_for_an_object() {
        let read = |text| one_or_many::<One, Many>(text, "acks");
        assert!(read(r#"["a"]"#).unwrap_err().0.contains("expected a JSON object"));
        assert!(read(r#"[[{"token":"a"}]]"#).is_err());
    }

    #[test]
    fn one_and_many_are_told_apart_by_their_field() {
        let read = |text| one_or_many::<One, Many>(text, "acks");
        assert_eq!(read(r#"{"token":"a"}"#), Ok(OneOrMany::One(One { token: "a".into() })));
        let many = Many { acks: vec![One { token: "a".into() }] };
        assert_eq!(read(r#"{"acks":[{"token":"a"}]}"#), Ok(OneOrMany::Many(many)));
        let both = read(r#"{"token":"b","acks":[{"token":"a"}]}"#).unwrap_err();
        assert!(both.0.contains("unknown field `token`"), "{both}");
        let inner = read(r#"{"acks":[{"token":1}]}"#).unwrap_err();
        assert!(inner.0.contains("expected a string"), "{inner}");
        let unknown = read(r#"{"tokens":"a"}"#).unwrap_err();
        assert!(unknown.0.contains("unknown field `tokens`"), "{unknown}");
        let broken = read(r#"{"acks":[{"token":"#).unwrap_err();
        assert!(broken.0.contains("EOF"), "{broken}");
        assert!(read("").unwrap_err().0.contains("empty"));
    }
}
