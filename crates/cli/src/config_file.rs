//! The TOML file of a server: its keys, and where it is wrong.
//!
//! Names nothing of this crate but `span`, so that `fuzz` can read the same files. What the keys mean together is in
//! `settings`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use crate::span::parse_bytes;

/// The TOML file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    pub(crate) node: Option<u64>,
    pub(crate) data: Option<PathBuf>,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) advertise: Option<String>,
    pub(crate) cluster: Option<String>,
    pub(crate) peer_listen: Option<SocketAddr>,
    pub(crate) peer_ca: Option<PathBuf>,
    pub(crate) peer_cert: Option<PathBuf>,
    pub(crate) peer_key: Option<PathBuf>,
    pub(crate) bootstrap: Option<bool>,
    pub(crate) shards: Option<u16>,
    pub(crate) log: Option<LogFormat>,
    pub(crate) insecure: Option<bool>,
    pub(crate) memory_bytes_max: Option<Size>,
    pub(crate) disk_reserve_bytes: Option<Size>,
    pub(crate) envelope_cache_bytes: Option<Size>,
    pub(crate) queues: Queues,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Queues {
    pub(crate) auto_create: Option<bool>,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// A size in bytes: a number, or with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        parse_bytes(text).map(Size)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Bytes(u64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Bytes(bytes) => Ok(Size(bytes)),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// What is wrong with a file, in one line, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) line: usize,
    pub(crate) message: String,
}

/// Reads a file's text.
pub(crate) fn parse(text: &str) -> Result<File, Wrong> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.as_bytes()[..before].iter().filter(|byte| **byte == b'\n').count();
        Wrong { line, message: error.message().replace('\n', " ") }
    })
}
