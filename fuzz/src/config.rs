//! The TOML file of a server.

use crate::{allocation, config_file, says_why};

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    [
        "data = \"/var/lib/windlass\"\nlisten = \"127.0.0.1:7420\"\nlog = \"json\"\nmemory_bytes_max = \"4GiB\"\n\n[queues]\nauto_create = false\n",
        "node = 2\ncluster = \"1=a:7421,2=b:7421,3=c:7421\"\npeer_listen = \"0.0.0.0:7421\"\nbootstrap = true\n",
        "peer_ca = 'ca.pem'\npeer_cert = 'cert.pem'\npeer_key = \"\"\"\nkey.pem\"\"\"\nadvertise = \"n2.example:7420\"\n",
        "shards = 1024\ninsecure = true\ndisk_reserve_bytes = 1_048_576\nenvelope_cache_bytes = 0x10\n",
        "shard = 2\n",
        "queues.auto_create = true\n# a comment\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // A table of one letter costs a node of a tree; nobody writes a file of many megabytes by accident.
    let bytes_max = 256 * 1024 + 1024 * text.len();
    if let Err(wrong) = allocation::within(bytes_max, || config_file::parse(text)) {
        let lines = 1 + text.matches('\n').count();
        assert!((1..=lines).contains(&wrong.line), "line {} of {lines}", wrong.line);
        assert!(!wrong.message.contains('\n'), "{:?} is more than one line", wrong.message);
        assert!(!wrong.message.trim().is_empty());
        if text.len() < 1024 {
            says_why(&wrong.message);
        }
    }
}
