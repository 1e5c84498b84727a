//! The `WINDLASS_*` variables: from the environment, then from `--env-file`.
//!
//! The process's own environment wins over the file, as with every other `.env` reader. A file is read
//! strictly: a line that is not `NAME=value` or a name that nobody reads is an error, because a typing
//! mistake there would otherwise be a setting that silently does nothing. Unknown names in the real
//! environment are left alone: orchestrators put their own `WINDLASS_…_PORT` there.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};

use crate::exit::Failure;

/// Every variable that some verb reads.
pub(crate) const KNOWN: &[&str] = &[
    "WINDLASS_SERVER",
    "WINDLASS_CONFIG",
    "WINDLASS_NODE",
    "WINDLASS_DATA",
    "WINDLASS_LISTEN",
    "WINDLASS_ADVERTISE",
    "WINDLASS_CLUSTER",
    "WINDLASS_PEER_LISTEN",
    "WINDLASS_PEER_CA",
    "WINDLASS_PEER_CERT",
    "WINDLASS_PEER_KEY",
    "WINDLASS_BOOTSTRAP",
    "WINDLASS_SHARDS",
    "WINDLASS_LOG",
    "WINDLASS_INSECURE",
    "WINDLASS_QUEUES_AUTO_CREATE",
    "WINDLASS_MEMORY_BYTES_MAX",
    "WINDLASS_DISK_RESERVE_BYTES",
    "WINDLASS_ENVELOPE_CACHE_BYTES",
];

/// Where settings that no flag gave are looked up.
#[derive(Debug, Default)]
pub(crate) struct Env {
    file: BTreeMap<String, String>,
}

impl Env {
    /// The environment, with the file's variables behind it.
    pub(crate) fn load(file: Option<&Path>) -> Result<Env> {
        let Some(path) = file else { return Ok(Env::default()) };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the env file {}", path.display()))?;
        let file = parse(&text).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
        Ok(Env { file })
    }

    /// A variable's value. An empty one counts as unset.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        debug_assert!(KNOWN.contains(&name), "{name} is read but not listed in KNOWN");
        std::env::var(name).ok().or_else(|| self.file.get(name).cloned()).filter(|value| !value.is_empty())
    }

    /// A variable's value, read as a `T`.
    pub(crate) fn read<T: FromStr>(&self, name: &str) -> Result<Option<T>>
    where
        T::Err: std::fmt::Display,
    {
        let Some(text) = self.get(name) else { return Ok(None) };
        let value = text.parse().map_err(|e| Failure::usage(format!("{name}={text}: {e}")))?;
        Ok(Some(value))
    }
}

fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut variables = BTreeMap::new();
    for (n, line) in text.lines().enumerate() {
        let n = n + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line
            .strip_prefix("export ")
            .unwrap_or(line)
            .split_once('=')
            .ok_or_else(|| format!("line {n} is not NAME=value: {line}"))?;
        let (name, value) = (name.trim(), unquote(value.trim()));
        if name.starts_with("WINDLASS_") && !KNOWN.contains(&name) {
            return Err(format!("line {n}: unknown key {name}; known ones are in .env.example"));
        }
        variables.insert(name.to_owned(), value.to_owned());
    }
    Ok(variables)
}

fn unquote(value: &str) -> &str {
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_env_file_is_read_line_by_line_and_refused_with_its_line() {
        let good = "# comment\n\nWINDLASS_SERVER=http://a\nexport WINDLASS_NODE = 2\nWINDLASS_DATA='/d d'\nOTHER=x\n";
        let variables = parse(good).unwrap();
        assert_eq!(variables["WINDLASS_SERVER"], "http://a");
        assert_eq!(variables["WINDLASS_NODE"], "2");
        assert_eq!(variables["WINDLASS_DATA"], "/d d");
        for (bad, what) in [("WINDLASS_SERVRE=x", "WINDLASS_SERVRE"), ("\nnonsense", "line 2")] {
            assert!(parse(bad).unwrap_err().contains(what), "{bad}");
        }
    }
}
