//! A queue to claim from, as people write it: `mail`, or with a weight `mail=3`.

use std::fmt;
use std::str::FromStr;

use model::{QueueName, limits};
use serde_json::{Value, json};

/// A queue, and how often it is served compared with the others. Without a weight, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weighted {
    pub(crate) name: String,
    pub(crate) weight: Option<u32>,
}

impl FromStr for Weighted {
    type Err = String;

    fn from_str(text: &str) -> Result<Weighted, String> {
        let (name, weight) = match text.rsplit_once('=') {
            Some((name, weight)) => (name, Some(weight)),
            // A queue's own name may have colons in it, so only a number after the last one is a weight.
            None => match text.rsplit_once(':') {
                Some((name, weight)) if weight.parse::<u64>().is_ok() => (name, Some(weight)),
                _ => (text, None),
            },
        };
        QueueName::new(name).map_err(|error| error.to_string())?;
        let max = limits::WEIGHT_MAX;
        let wrong = |weight: &str| {
            format!("the weight of queue {name} is {weight:?}: give a number from 1 to {max}, as in {name}=3")
        };
        let weight = weight.map(|weight| match weight.parse() {
            Ok(number) if (1..=max).contains(&number) => Ok(number),
            _ => Err(wrong(weight)),
        });
        Ok(Weighted { name: name.to_owned(), weight: weight.transpose()? })
    }
}

impl fmt::Display for Weighted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.weight {
            Some(weight) => write!(f, "{}={weight}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl Weighted {
    /// As a claim says it.
    pub(crate) fn json(&self) -> Value {
        match self.weight {
            Some(weight) => json!({"name": self.name, "weight": weight}),
            None => self.name.as_str().into(),
        }
    }
}

impl From<&Weighted> for windlass::QueueChoice {
    fn from(queue: &Weighted) -> windlass::QueueChoice {
        match queue.weight {
            Some(weight) => (queue.name.as_str(), weight).into(),
            None => queue.name.as_str().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_a_name_with_or_without_a_weight() {
        for (text, expected) in [
            ("mail", Some(("mail", None))),
            ("mail=3", Some(("mail", Some(3)))),
            ("mail:3", Some(("mail", Some(3)))),
            ("a:b", Some(("a:b", None))),
            ("a:b:2", Some(("a:b", Some(2)))),
            ("a:b=2", Some(("a:b", Some(2)))),
            ("a=1000", Some(("a", Some(1000)))),
            ("a=0", None),
            ("a:0", None),
            ("a=1001", None),
            ("a=-1", None),
            ("a=", None),
            ("a=x", None),
            ("=3", None),
            ("a b", None),
            ("", None),
        ] {
            let read = text.parse::<Weighted>();
            let parts = read.as_ref().ok().map(|queue| (queue.name.as_str(), queue.weight));
            assert_eq!(parts, expected, "{text:?}: {read:?}");
        }
        let error = "mail=0".parse::<Weighted>().unwrap_err();
        assert_eq!(error, "the weight of queue mail is \"0\": give a number from 1 to 1000, as in mail=3");
    }

    #[test]
    fn a_queue_is_written_as_it_is_read() {
        for (text, json) in [("mail", json!("mail")), ("mail=3", json!({"name": "mail", "weight": 3}))] {
            let queue: Weighted = text.parse().unwrap();
            assert_eq!((queue.to_string().as_str(), queue.json()), (text, json));
        }
    }
}
