//! How many things a message is made of, counted before it is read.
//!
//! An empty task takes two bytes in a message and some hundreds in memory: without this a message within its limit of
//! bytes could take a hundred times as much. Short messages cannot, and are not looked at. Which fields repeat is in the
//! description that was compiled with the messages.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use model::limits::{MESSAGE_ITEMS_MAX, MESSAGE_PAIRS_MAX};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{Message, Name};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FileDescriptorSet};

use super::DESCRIPTOR;

/// Messages up to this size are read as they are.
const COUNTED_BYTES_MIN: usize = 64 * 1024;
/// How the names of what a server says end: it is as large as what was asked for, and cannot be split.
const ANSWERS: [&str; 3] = ["Reply", "ServerMessage", "EnqueueResults"];
/// Messages within messages; ours have fewer levels.
const DEPTH_MAX: usize = 16;

/// A message is made of more things than we read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has more than {max} {what}: split it over several")]
pub struct TooMany {
    what: &'static str,
    max: usize,
}

/// What a message may repeat, by its field's number.
#[derive(Default)]
struct Shape {
    fields: BTreeMap<u32, Field>,
}

struct Field {
    is_repeated: bool,
    /// The message in it, if it is one.
    message: Option<String>,
}

/// What is left to be counted.
struct Left {
    items: usize,
    pairs: usize,
}

static SHAPES: LazyLock<BTreeMap<String, Shape>> = LazyLock::new(|| {
    let files = FileDescriptorSet::decode(DESCRIPTOR).expect("the compiler of this build wrote it");
    let mut shapes = BTreeMap::new();
    for file in &files.file {
        for message in &file.message_type {
            add(file.package(), message, &mut shapes);
        }
    }
    shapes
});

fn add(parent: &str, message: &DescriptorProto, shapes: &mut BTreeMap<String, Shape>) {
    let name = format!("{parent}.{}", message.name());
    let field = |field: &prost_types::FieldDescriptorProto| {
        let message = field.type_name().trim_start_matches('.').to_owned();
        let message = (field.r#type() == Type::Message).then_some(message);
        (field.number() as u32, Field { is_repeated: field.label() == Label::Repeated, message })
    };
    for inner in &message.nested_type {
        add(&name, inner, shapes);
    }
    shapes.insert(name, Shape { fields: message.field.iter().map(field).collect() });
}

/// Refuses a message that is made of more things than limits allow. Whether it is a message at all is not looked at.
pub fn check<M: Name>(bytes: &[u8]) -> Result<(), TooMany> {
    if bytes.len() <= COUNTED_BYTES_MIN || ANSWERS.iter().any(|end| M::NAME.ends_with(end)) {
        return Ok(());
    }
    let mut left = Left { items: MESSAGE_ITEMS_MAX, pairs: MESSAGE_PAIRS_MAX };
    match SHAPES.get(&M::full_name()) {
        Some(shape) => count(bytes, shape, DEPTH_MAX, &mut left),
        None => Ok(()),
    }
}

/// Ends in silence where the bytes are no message: whoever decodes them stops there, too.
fn count(mut bytes: &[u8], shape: &Shape, depth: usize, left: &mut Left) -> Result<(), TooMany> {
    while !bytes.is_empty() {
        let Ok((tag, wire_type)) = decode_key(&mut bytes) else { return Ok(()) };
        if wire_type != WireType::LengthDelimited {
            if skip_field(wire_type, tag, &mut bytes, DecodeContext::default()).is_err() {
                return Ok(());
            }
            continue;
        }
        let length = decode_varint(&mut bytes).ok().and_then(|length| usize::try_from(length).ok());
        let Some((body, rest)) = length.and_then(|length| bytes.split_at_checked(length)) else {
            return Ok(());
        };
        bytes = rest;
        let Some(field) = shape.fields.get(&tag) else { continue };
        if field.is_repeated {
            left.take(field)?;
        }
        if let Some(inner) = field.message.as_ref().and_then(|message| SHAPES.get(message))
            && depth > 0
        {
            count(body, inner, depth - 1, left)?;
        }
    }
    Ok(())
}

impl Left {
    fn take(&mut self, field: &Field) -> Result<(), TooMany> {
        let is_pair = field.message.as_ref().is_some_and(|message| message.ends_with("Entry"));
        let (left, what, max) = match is_pair {
            true => (&mut self.pairs, "headers and labels", MESSAGE_PAIRS_MAX),
            false => (&mut self.items, "items", MESSAGE_ITEMS_MAX),
        };
        *left = left.checked_sub(1).ok_or(TooMany { what, max })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::{Done, EnqueueItem, EnqueueManyRequest, Outcome, SettleRequest, Task, outcome};

    #[test]
    fn a_message_of_many_empty_things_is_refused_before_it_is_read() {
        let tasks = |count: usize| [10, 0].repeat(count);
        assert_eq!(check::<EnqueueManyRequest>(&tasks(MESSAGE_ITEMS_MAX)), Ok(()));
        let error = check::<EnqueueManyRequest>(&tasks(MESSAGE_ITEMS_MAX + 1)).unwrap_err();
        assert_eq!(error.to_string(), "the message has more than 100000 items: split it over several");
        // What a decoder passes by does not hide what comes after it.
        let hidden = [[0x73, 0x08, 1, 0x74, 0x7a, 0].to_vec(), tasks(MESSAGE_ITEMS_MAX + 1)].concat();
        assert!(EnqueueManyRequest::decode(&hidden[..40]).is_ok());
        assert!(check::<EnqueueManyRequest>(&hidden).is_err());
        assert!(check::<EnqueueItem>(&[26, 0].repeat(MESSAGE_ITEMS_MAX + 1)).is_err());
    }

    #[test]
    fn things_within_things_are_counted() {
        let then = vec![Task::default(); 1_000];
        let ack = outcome::Outcome::Ack(Done { then, ..Done::default() });
        let outcome = Outcome { outcome: Some(ack), ..Outcome::default() };
        let settle = |count: usize| SettleRequest {
            outcomes: vec![outcome.clone(); count],
            ..SettleRequest::default()
        };
        assert_eq!(check::<SettleRequest>(&settle(99).encode_to_vec()), Ok(()));
        assert!(check::<SettleRequest>(&settle(100).encode_to_vec()).is_err());
    }

    #[test]
    fn headers_are_counted_apart() {
        let headers = (0..200_000).map(|n| (n.to_string(), String::new())).collect();
        let task = Task { headers, ..Task::default() };
        let tasks = |count: usize| EnqueueManyRequest { tasks: vec![task.clone(); count], atomic: false };
        assert_eq!(check::<EnqueueManyRequest>(&tasks(5).encode_to_vec()), Ok(()));
        let error = check::<EnqueueManyRequest>(&tasks(6).encode_to_vec()).unwrap_err();
        assert!(error.to_string().contains("headers and labels"), "{error}");
    }

    #[test]
    fn bytes_that_are_no_message_are_left_to_the_decoder() {
        for bytes in [vec![0xff; 100_000], vec![0x0a; 100_001], vec![0x0b; 100_000]] {
            assert_eq!(check::<EnqueueManyRequest>(&bytes), Ok(()));
            assert!(EnqueueManyRequest::decode(&bytes[..]).is_err());
        }
    }
}
