//! A command to the catalog as bytes.

use bytes::Bytes;
use model::catalog::{CatalogCommand, ClusterFacts};
use prost::{Message, Oneof};

use crate::entry::Malformed;
use crate::new_task::{Bits128, queue_name};
use crate::settings::SettingsMessage;

/// [`CatalogCommand`] as a message.
#[derive(Clone, PartialEq, Message)]
pub struct CatalogMessage {
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    Init(InitMessage),
    #[prost(message, tag = "2")]
    SetQueue(SetQueueMessage),
    #[prost(bytes = "bytes", tag = "3")]
    DeleteQueue(Bytes),
}

#[derive(Clone, PartialEq, Message)]
struct InitMessage {
    #[prost(message, optional, tag = "1")]
    cluster_id: Option<Bits128>,
    #[prost(uint32, tag = "2")]
    shards: u32,
    #[prost(bytes = "bytes", tag = "3")]
    token_key: Bytes,
}

/// A queue and its settings; shared with the shard's command.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SetQueueMessage {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) queue: Bytes,
    #[prost(message, optional, tag = "2")]
    pub(crate) settings: Option<SettingsMessage>,
}

impl From<&CatalogCommand> for CatalogMessage {
    fn from(command: &CatalogCommand) -> CatalogMessage {
        let kind = match command {
            CatalogCommand::Init(facts) => Kind::Init(InitMessage {
                cluster_id: Some(facts.cluster_id.into()),
                shards: u32::from(facts.shards),
                token_key: Bytes::copy_from_slice(&facts.token_key),
            }),
            CatalogCommand::SetQueue { queue, settings } => Kind::SetQueue(SetQueueMessage {
                queue: Bytes::copy_from_slice(queue.as_str().as_bytes()),
                settings: Some(settings.into()),
            }),
            CatalogCommand::DeleteQueue { queue } => {
                Kind::DeleteQueue(Bytes::copy_from_slice(queue.as_str().as_bytes()))
            }
        };
        CatalogMessage { kind: Some(kind) }
    }
}

/// A command from its bytes.
pub fn decode(bytes: Bytes) -> Result<CatalogCommand, Malformed> {
    let kind = CatalogMessage::decode(bytes)?.kind.ok_or(Malformed::Unknown("command to the catalog"))?;
    Ok(match kind {
        Kind::Init(init) => CatalogCommand::Init(ClusterFacts {
            cluster_id: init.cluster_id.ok_or(Malformed::Missing("cluster id"))?.into(),
            shards: u16::try_from(init.shards).map_err(|_| Malformed::Value("number of shards"))?,
            token_key: init.token_key[..].try_into().map_err(|_| Malformed::Value("token key"))?,
        }),
        Kind::SetQueue(set) => CatalogCommand::SetQueue {
            queue: queue_name(&set.queue)?,
            settings: set.settings.ok_or(Malformed::Missing("settings"))?.try_into()?,
        },
        Kind::DeleteQueue(queue) => CatalogCommand::DeleteQueue { queue: queue_name(&queue)? },
    })
}
