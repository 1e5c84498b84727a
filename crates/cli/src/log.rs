//! Logs on stderr: text for people, JSON on request.

use std::io::IsTerminal;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use tracing_subscriber::EnvFilter;

pub(crate) use crate::config_file::LogFormat;

impl ValueEnum for LogFormat {
    fn value_variants<'a>() -> &'a [LogFormat] {
        &[LogFormat::Text, LogFormat::Json]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            LogFormat::Text => PossibleValue::new("text").help("For people"),
            LogFormat::Json => PossibleValue::new("json").help("One JSON object per line"),
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFormat, String> {
        <LogFormat as ValueEnum>::from_str(text, false).map_err(|_| "expected text or json".to_owned())
    }
}

/// Starts logging. `RUST_LOG` chooses what is said; otherwise all from info up.
pub(crate) fn init(format: LogFormat) {
    // The consensus engine warns of what it then handles, such as a message of the term before.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,openraft=error"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Json => lines.json().flatten_event(true).init(),
        LogFormat::Text => lines.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
    }
}
