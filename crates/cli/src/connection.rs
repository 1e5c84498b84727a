//! The flags that every command takes that talks to a server.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::client::Client;
use crate::env::Env;
use crate::exit::Failure;
use crate::output::{Format, Output};
use crate::span::Span;

/// Where a server is when nobody says.
pub(crate) const SERVER_DEFAULT: &str = "http://127.0.0.1:7420";

/// Which server, and how the answer is shown.
#[derive(Args, Debug)]
pub(crate) struct Connection {
    /// Servers to talk to; the next one is tried when one is down [env: WINDLASS_SERVER]
    #[arg(long, global = true, value_name = "URL[,URL…]", help_heading = "Connection")]
    server: Option<String>,
    /// How long one request may take, beyond what it was asked to wait
    #[arg(long, global = true, value_name = "TIME", default_value = "30s", help_heading = "Connection")]
    timeout: Span,
    /// Read WINDLASS_* variables from this file as well
    #[arg(long, global = true, value_name = "FILE", help_heading = "Connection")]
    env_file: Option<PathBuf>,
    /// How to show the answer
    #[arg(short, long, global = true, value_enum, default_value_t, help_heading = "Connection")]
    output: Format,
}

impl Connection {
    /// A client for the servers that flags, environment or default name.
    pub(crate) fn client(&self) -> Result<Client> {
        Client::new(&self.servers()?, self.timeout.duration())
    }

    /// The SDK's client for the same servers, connected to one of them.
    pub(crate) async fn sdk(&self) -> Result<windlass::Client> {
        let client = windlass::Client::builder(self.servers()?).patience(self.timeout.duration());
        Ok(client.connect().await.map_err(Failure::from)?)
    }

    /// The flags that name the same servers to another process.
    pub(crate) fn flags(&self) -> Result<[String; 4]> {
        Ok(["--server".to_owned(), self.servers()?, "--timeout".to_owned(), self.timeout.to_string()])
    }

    /// The servers as one string, for handing on.
    pub(crate) fn servers(&self) -> Result<String> {
        let env = Env::load(self.env_file.as_deref())?;
        let named = self.server.clone().or_else(|| env.get("WINDLASS_SERVER"));
        Ok(named.unwrap_or_else(|| SERVER_DEFAULT.to_owned()))
    }

    /// How the answer is shown.
    pub(crate) fn output(&self) -> Output {
        Output::new(self.output)
    }
}
