//! Mutual TLS on the peer port: nodes that prove who they are talk, strangers get nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::load::{Load, Shape};
use crate::rig::{PATIENCE, Rig, windlass};

/// A CA of its own and a certificate for these hosts, as PEM files in `dir`: the flags that name them.
pub(crate) fn certificates(dir: &Path, name: &str, hosts: &[String]) -> Vec<String> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let node_key = KeyPair::generate().unwrap();
    let node = CertificateParams::new(hosts.to_vec()).unwrap().signed_by(&node_key, &issuer).unwrap();
    let file = |kind: &str, pem: String| {
        let path = dir.join(format!("{name}-{kind}.pem"));
        std::fs::write(&path, pem).unwrap();
        format!("--peer-{kind}={}", path.display())
    };
    vec![file("ca", ca.pem()), file("cert", node.pem()), file("key", node_key.serialize_pem())]
}

fn here() -> Vec<String> {
    vec!["127.0.0.1".to_owned()]
}

#[test]
fn nodes_talk_over_mutual_tls_and_a_stranger_gets_nothing() {
    let _alone = crate::alone();
    let dir = tempfile::tempdir().unwrap();
    let ours = certificates(dir.path(), "ours", &here());
    let flags: Vec<&str> = ours.iter().map(String::as_str).collect();
    let mut rig = Rig::started(3, &flags);
    let load = Load::start(&rig.addresses(), Shape::default());
    load.flow(100);

    for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01\x00\x05hello", b""] {
        let mut stranger = TcpStream::connect(rig.nodes[0].peer).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stranger.write_all(words).unwrap();
        let mut heard = Vec::new();
        // A reset is as good as an end.
        let _ = stranger.read_to_end(&mut heard);
        // TLS may say in an alert what it did not like; that is all.
        assert!(heard.is_empty() || (heard[0] == 0x15 && heard.len() <= 7), "{words:?} heard {heard:?}");
    }

    // A node with certificates of another authority is no node.
    let theirs = certificates(dir.path(), "theirs", &here());
    let flags: Vec<&str> = theirs.iter().map(String::as_str).collect();
    rig.kill(2);
    rig.wipe(2);
    rig.set_flags(2, &flags);
    rig.start(2);
    load.flow(100);
    let waits = rig.view(2);
    assert!(waits.is_none_or(|view| !view.ready), "a node that nobody trusts became ready");
    rig.kill(2);
    rig.set_flags(2, &[]);
    rig.start(2);
    rig.await_ready(2);
    rig.await_leaders(PATIENCE);
    let history = load.stop();
    crate::check::all(&history);
    crate::check::nothing_failed(&history);
}

#[test]
fn files_that_do_not_fit_are_refused_with_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) =
        (certificates(dir.path(), "ours", &here()), certificates(dir.path(), "theirs", &here()));
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "nothing here\n").unwrap();
    let [no_ca, no_key] = ["ca", "key"].map(|kind| format!("--peer-{kind}={}", empty.display()));
    for (flags, part) in [
        ([&ours[0], &ours[1], &theirs[2]], "--peer-key"),
        ([&no_ca, &ours[1], &ours[2]], "--peer-ca"),
        ([&ours[0], &ours[1], &no_key], "--peer-key"),
    ] {
        let mut command = windlass();
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--cluster",
            "1=127.0.0.1:1,2=127.0.0.1:2,3=127.0.0.1:3",
        ]);
        command.arg("--data").arg(dir.path().join("data")).args(flags).env("RUST_LOG", "off");
        let output = command.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(part) && error.trim_end().lines().count() == 1, "{error}");
    }
    assert!(!dir.path().join("data").exists(), "a refused server left a data directory");
}
