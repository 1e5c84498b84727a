//! The other nodes, as a server is told about them: who they are, where we listen for them, and what keeps
//! strangers out.
//!
//! Everything that can be refused without touching the network is refused here, in one line each. Never
//! opens a connection; `server` does, with what this found to be sound.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use model::limits::{NODE_MAX, VOTERS_MAX};

use crate::exit::Failure;

/// What a server knows of the other nodes, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peers {
    /// Where every node is reached by the others, this one included.
    pub(crate) members: BTreeMap<u64, String>,
    /// Where this one listens for the others.
    pub(crate) listen: SocketAddr,
    /// What proves who is who; nothing on loopback or by wish.
    pub(crate) tls: Option<TlsFiles>,
    /// Found the cluster now, without waiting for the others.
    pub(crate) bootstrap: bool,
}

/// The PEM files of mutual TLS between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// Who signs the nodes' certificates.
    pub(crate) ca: PathBuf,
    /// This node's certificate.
    pub(crate) cert: PathBuf,
    /// And its key.
    pub(crate) key: PathBuf,
}

/// The same as it was given, from whatever source.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) cluster: Option<String>,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) bootstrap: bool,
    pub(crate) insecure: bool,
}

impl Peers {
    /// Checks what was given for `node`. Nothing means that it runs alone and opens no peer port.
    pub(crate) fn check(node: u64, given: Given) -> Result<Option<Peers>> {
        if !(1..=NODE_MAX).contains(&node) {
            return Err(usage(format!("node {node}: give a number from 1 to {NODE_MAX}")));
        }
        let tls = tls_files(given.ca, given.cert, given.key)?;
        let Some(cluster) = given.cluster else {
            let without = [
                (given.listen.is_some(), "--peer-listen"),
                (tls.is_some(), "--peer-ca, --peer-cert and --peer-key"),
                (given.bootstrap, "--bootstrap"),
            ];
            return match without.iter().find(|(given, _)| *given) {
                Some((_, flag)) => Err(usage(format!(
                    "{flag} without --cluster: say who the nodes are, as 1=HOST:7421,2=HOST:7421,3=HOST:7421"
                ))),
                None => Ok(None),
            };
        };
        let members = members(&cluster)?;
        let Some(own) = members.get(&node) else {
            return Err(usage(format!("node {node} is not in --cluster {cluster}: add {node}=HOST:7421")));
        };
        if members.len() == 1 && given.listen.is_none() {
            return Ok(None);
        }
        let listen = given.listen.map_or_else(|| own_address(own), Ok)?;
        if tls.is_none() && !given.insecure && !listen.ip().is_loopback() {
            return Err(usage(format!(
                "the peer port on {listen} can be reached by others: give --peer-ca, --peer-cert and \
                 --peer-key, or say --insecure if the network is yours alone"
            )));
        }
        Ok(Some(Peers { members, listen, tls, bootstrap: given.bootstrap }))
    }

    /// What is allowed and still unwise, in a sentence.
    pub(crate) fn warning(&self) -> Option<String> {
        let voters = self.members.len().min(VOTERS_MAX);
        (voters.is_multiple_of(2))
            .then(|| format!("{voters} voting nodes stop when either is lost, as one node does: run 1 or 3"))
    }
}

fn usage(message: String) -> anyhow::Error {
    Failure::usage(message).into()
}

fn members(text: &str) -> Result<BTreeMap<u64, String>> {
    let mut members = BTreeMap::new();
    for member in text.split(',') {
        let (node, address) = parse_member(member).ok_or_else(|| {
            usage(format!(
                "cluster member {member:?}: write it like 1=HOST:7421, with a number up to {NODE_MAX}"
            ))
        })?;
        if let Some(other) = members.values().find(|other| **other == address) {
            return Err(usage(format!("--cluster has {other} twice: each node has its own address")));
        }
        if members.insert(node, address).is_some() {
            return Err(usage(format!("--cluster has node {node} twice: each node has its own number")));
        }
    }
    Ok(members)
}

/// A node and where the others reach it, as `--cluster` takes them.
pub(crate) fn check_member(node: u64, address: &str) -> Result<String> {
    match parse_member(&format!("{node}={address}")) {
        Some((_, address)) => Ok(address),
        None => Err(usage(format!(
            "node {node} at {address:?}: give a number from 1 to {NODE_MAX} and an address like HOST:7421"
        ))),
    }
}

/// Whether an address means something on its own machine only.
pub(crate) fn is_loopback(address: &str) -> bool {
    match address.parse::<SocketAddr>() {
        Ok(address) => address.ip().is_loopback(),
        Err(_) => address.rsplit_once(':').is_some_and(|(host, _)| host == "localhost"),
    }
}

fn parse_member(member: &str) -> Option<(u64, String)> {
    let (node, address) = member.trim().split_once('=')?;
    let node = node.trim().parse().ok().filter(|node| (1..=NODE_MAX).contains(node))?;
    let address = address.trim();
    let (host, port) = address.rsplit_once(':')?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let is_host = !host.is_empty() && (bracketed || !host.contains([':', '/', ' ']));
    (is_host && port.parse::<u16>().is_ok_and(|port| port > 0)).then(|| (node, address.to_owned()))
}

/// Listening where the others look for us is right unless that is a name, which may mean several addresses.
fn own_address(own: &str) -> Result<SocketAddr> {
    match own.parse() {
        Ok(address) => Ok(address),
        Err(_) => Err(usage(format!(
            "--cluster has this node at {own}, which is a name: say where to listen with --peer-listen, \
             such as 0.0.0.0:7421"
        ))),
    }
}

fn tls_files(ca: Option<PathBuf>, cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<TlsFiles>> {
    match (ca, cert, key) {
        (None, None, None) => Ok(None),
        (Some(ca), Some(cert), Some(key)) => {
            for (flag, path) in [("--peer-ca", &ca), ("--peer-cert", &cert), ("--peer-key", &key)] {
                check_readable(flag, path)?;
            }
            Ok(Some(TlsFiles { ca, cert, key }))
        }
        (ca, cert, key) => {
            let given = [("--peer-ca", ca), ("--peer-cert", cert), ("--peer-key", key)];
            let missing: Vec<&str> =
                given.iter().filter(|(_, path)| path.is_none()).map(|(flag, _)| *flag).collect();
            Err(usage(format!(
                "TLS between nodes needs all three files: {} is missing",
                missing.join(" and ")
            )))
        }
    }
}

fn check_readable(flag: &str, path: &Path) -> Result<()> {
    std::fs::File::open(path)
        .map(drop)
        .map_err(|e| usage(format!("{flag} {}: cannot be read: {e}", path.display())))
}

/// An HTTP address that others are to be told.
pub(crate) fn check_advertise(text: &str) -> Result<String> {
    match parse_member(&format!("1={text}")) {
        Some((_, address)) => Ok(address),
        None => Err(usage(format!("--advertise {text:?}: write it like HOST:7420"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(cluster: &str) -> Given {
        Given { cluster: Some(cluster.to_owned()), ..Given::default() }
    }

    const THREE: &str = "1=127.0.0.1:7421,2=127.0.0.1:7431,3=127.0.0.1:7441";

    #[test]
    fn a_lone_node_opens_no_peer_port_unless_it_is_told_to() {
        assert_eq!(Peers::check(1, Given::default()).unwrap(), None);
        assert_eq!(Peers::check(1, given("1=127.0.0.1:7421")).unwrap(), None);
        let listen = Some("127.0.0.1:7421".parse().unwrap());
        let alone = Peers::check(1, Given { listen, ..given("1=127.0.0.1:7421") }).unwrap().unwrap();
        assert_eq!(alone.members.len(), 1);
    }

    #[test]
    fn a_node_listens_where_the_others_look_for_it() {
        let peers = Peers::check(2, given(THREE)).unwrap().unwrap();
        assert_eq!(peers.listen, "127.0.0.1:7431".parse().unwrap());
        assert_eq!(peers.members[&3], "127.0.0.1:7441");
        assert_eq!(peers.warning(), None);
        let two = Peers::check(1, given("1=127.0.0.1:1,2=127.0.0.1:2")).unwrap().unwrap();
        assert!(two.warning().unwrap().contains("run 1 or 3"));
        let four = Peers::check(1, given(&format!("{THREE},4=127.0.0.1:9"))).unwrap().unwrap();
        assert_eq!(four.warning(), None, "three of four vote");
    }

    #[test]
    fn what_cannot_work_is_refused_in_one_line() {
        let listen = |text: &str| Some(text.parse().unwrap());
        let here = || Some(PathBuf::from("Cargo.toml"));
        for (node, given, part) in [
            (0, Given::default(), "node 0"),
            (70_000, Given::default(), "node 70000"),
            (4, given(THREE), "node 4 is not in --cluster"),
            (1, given("1=a:1,1=b:1"), "node 1 twice"),
            (1, given("1=a:1,2=a:1"), "a:1 twice"),
            (1, given("1=a"), "write it like 1=HOST:7421"),
            (1, given("1=a:0"), "write it like"),
            (1, given("one=a:1"), "write it like"),
            (1, given("1=::1:7421"), "write it like"),
            (1, given("1=a:1,2=b:1"), "which is a name"),
            (
                1,
                Given { listen: listen("127.0.0.1:7421"), ..Given::default() },
                "--peer-listen without --cluster",
            ),
            (1, Given { bootstrap: true, ..Given::default() }, "--bootstrap without --cluster"),
            (1, Given { listen: listen("0.0.0.0:7421"), ..given(THREE) }, "--insecure"),
            (1, given("1=10.0.0.1:7421,2=10.0.0.2:7421,3=10.0.0.3:7421"), "--peer-ca"),
            (1, Given { ca: here(), ..given(THREE) }, "--peer-cert and --peer-key is missing"),
            (
                1,
                Given { ca: here(), cert: here(), key: Some("no/such.pem".into()), ..given(THREE) },
                "--peer-key no/such.pem",
            ),
        ] {
            let error = Peers::check(node, given).unwrap_err().to_string();
            assert!(error.contains(part), "{error:?} does not say {part:?}");
            assert!(!error.contains('\n'), "{error:?} is more than one line");
        }
        let insecure = Given { listen: listen("0.0.0.0:7421"), insecure: true, ..given(THREE) };
        assert!(Peers::check(1, insecure).is_ok());
        assert!(Peers::check(1, given("1=[::1]:7421,2=[::1]:7431")).is_ok());
    }

    #[test]
    fn what_is_on_this_machine_only_is_known_by_its_address() {
        for (address, is_so) in [
            ("127.0.0.1:7421", true),
            ("[::1]:7421", true),
            ("localhost:7421", true),
            ("10.0.0.1:7421", false),
            ("node-1:7421", false),
        ] {
            assert_eq!(is_loopback(address), is_so, "{address}");
        }
    }

    #[test]
    fn others_are_told_an_address_and_nothing_else() {
        assert_eq!(check_advertise("node-1.example:7420").unwrap(), "node-1.example:7420");
        for wrong in ["node-1", "http://node-1:7420", "node-1:0", ""] {
            assert!(check_advertise(wrong).is_err(), "{wrong:?}");
        }
    }
}
