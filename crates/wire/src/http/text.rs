//! Strings and string maps that borrow from the body they came in.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// A string; borrowed where the JSON had no escapes in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String)]
pub struct Text<'a>(pub Cow<'a, str>);

impl Text<'_> {
    /// The string as one that owns itself.
    pub fn into_string(self) -> String {
        self.0.into_owned()
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Text<'a> {
        Text(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Text(Cow::Owned(text))
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor).map(Text)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text))
    }
}

/// A JSON object of strings, in the order given. A name that stands there twice is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(value_type = std::collections::BTreeMap<String, String>)]
pub struct Pairs<'a>(pub Vec<(Text<'a>, Text<'a>)>);

/// More than any limit on headers or labels, so that the check for repeats stays cheap.
const PAIRS_MAX: usize = 1_000;

impl Pairs<'_> {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor).map(Pairs)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Vec<(Text<'de>, Text<'de>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object whose values are strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs: Vec<(Text<'de>, Text<'de>)> = Vec::new();
        while let Some((name, value)) = map.next_entry::<Text<'de>, Text<'de>>()? {
            if pairs.len() == PAIRS_MAX {
                return Err(de::Error::custom(format_args!("more than {PAIRS_MAX} names in one object")));
            }
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(de::Error::custom(format_args!("{:?} stands there twice", &*name)));
            }
            pairs.push((name, value));
        }
        Ok(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_borrows_unless_it_has_escapes() {
        let plain: Text<'_> = serde_json::from_str("\"ada\"").unwrap();
        assert!(matches!(plain.0, Cow::Borrowed("ada")));
        let escaped: Text<'_> = serde_json::from_str("\"a\\nb\"").unwrap();
        assert!(matches!(escaped.0, Cow::Owned(_)));
        assert_eq!(&*escaped, "a\nb");
    }

    #[test]
    fn pairs_keep_their_order_and_refuse_repeats() {
        let json = r#"{"b":"1","a":"2"}"#;
        let pairs: Pairs<'_> = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&pairs).unwrap(), json);
        assert!(serde_json::from_str::<Pairs<'_>>(r#"{"a":"1","a":"2"}"#).is_err());
        assert!(serde_json::from_str::<Pairs<'_>>(r#"{"a":1}"#).is_err());
    }
}
