//! An answer, kept as it came.
//!
//! Programs get the server's own bytes: a payload with a number of thirty digits must not lose any of
//! them on its way through us. Tables for people are made from the parsed value beside it.

use serde_json::Value;
use serde_json::value::RawValue;

/// One JSON value: its text and its meaning.
#[derive(Clone, Debug)]
pub(crate) struct Json {
    raw: Box<RawValue>,
    value: Value,
}

impl Json {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Json, serde_json::Error> {
        let raw: Box<RawValue> = serde_json::from_slice(bytes)?;
        Json::of_raw(raw)
    }

    pub(crate) fn null() -> Json {
        Json::from(Value::Null)
    }

    fn of_raw(raw: Box<RawValue>) -> Result<Json, serde_json::Error> {
        let value = serde_json::from_str(raw.get())?;
        Ok(Json { raw, value })
    }

    /// The text as it came.
    pub(crate) fn raw(&self) -> &str {
        self.raw.get()
    }

    /// What it says.
    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    /// The elements of a list that stands in one of its fields; none if there is no such field.
    pub(crate) fn items(&self, field: &str) -> Vec<Json> {
        let Ok(fields) = serde_json::from_str::<std::collections::BTreeMap<String, &RawValue>>(self.raw())
        else {
            return Vec::new();
        };
        let list =
            fields.get(field).and_then(|raw| serde_json::from_str::<Vec<Box<RawValue>>>(raw.get()).ok());
        list.unwrap_or_default().into_iter().filter_map(|raw| Json::of_raw(raw).ok()).collect()
    }

    /// A field's text, or nothing.
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.value.get(field).and_then(Value::as_str)
    }

    /// A field's number, or 0.
    pub(crate) fn number(&self, field: &str) -> u64 {
        self.value.get(field).and_then(Value::as_u64).unwrap_or(0)
    }
}

impl From<Value> for Json {
    fn from(value: Value) -> Json {
        let raw = RawValue::from_string(value.to_string()).expect("a value's text is JSON");
        Json { raw, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_keeps_its_bytes() {
        let text = br#"{"tasks":[{"b":123456789012345678901234567890,"a":1.0}]}"#;
        let answer = Json::parse(text).unwrap();
        assert_eq!(answer.items("tasks")[0].raw(), r#"{"b":123456789012345678901234567890,"a":1.0}"#);
        assert!(answer.items("other").is_empty());
    }
}
