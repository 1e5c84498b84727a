//! The greeting: who is there, and whether the two want to talk.

use std::io;

use bytes::Bytes;
use model::NodeId;
use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wire::peer::{self, HELLO_HEAD_BYTES, Hello, HelloAnswer, Refusal, RefusalCode};

use super::connection::Other;
use super::links::{Identity, Membership};
use super::network::Stream;

/// What this node says first.
pub(super) fn hello(me: &Identity, ours: Membership, to: NodeId) -> Hello {
    Hello {
        version_min: peer::PROTOCOL_MIN,
        version_max: peer::PROTOCOL_MAX,
        cluster: peer::cluster_bytes(ours.cluster),
        node: me.node.0,
        process: me.process,
        address: me.address.clone(),
        to: to.0,
        incarnation: ours.incarnation,
    }
}

/// What this node says to a [`Hello`]. Whoever is refused does not hear which cluster it is.
pub(super) fn answer(
    me: &Identity,
    ours: Membership,
    version: u32,
    refusal: Option<(RefusalCode, String)>,
) -> HelloAnswer {
    HelloAnswer {
        version,
        cluster: if refusal.is_none() { peer::cluster_bytes(ours.cluster) } else { Bytes::new() },
        node: me.node.0,
        process: me.process,
        address: me.address.clone(),
        incarnation: ours.incarnation.filter(|_| refusal.is_none()),
        refusal: refusal.map(|(code, text)| Refusal { code: code as i32, text }),
    }
}

/// Whom the hello is from, or why we do not talk.
pub(super) fn judge(hello: &Hello, me: &Identity, cluster: u128) -> Result<Other, (RefusalCode, String)> {
    let (Some(node), Some(theirs)) = (hello.from(), peer::cluster_from_bytes(&hello.cluster)) else {
        let text = format!("node {} with such a cluster id cannot be", hello.node);
        return Err((RefusalCode::Unknown, text));
    };
    if peer::common_version(hello.version_min, hello.version_max).is_none() {
        let text = format!(
            "node {node} speaks protocol {} to {}, node {} speaks {} to {}: upgrade the older one",
            hello.version_min,
            hello.version_max,
            me.node,
            peer::PROTOCOL_MIN,
            peer::PROTOCOL_MAX
        );
        return Err((RefusalCode::Version, text));
    }
    if hello.to != me.node.0 {
        let text = format!(
            "node {node} looks for node {} at the address of node {}: check the addresses in --cluster",
            hello.to, me.node
        );
        return Err((RefusalCode::WrongNode, text));
    }
    if node == me.node {
        let text =
            format!("two processes say that they are node {node}: give each its own number with --node");
        return Err((RefusalCode::SameNumber, text));
    }
    same_cluster(node, theirs, me.node, cluster)?;
    let knows_cluster = cluster != 0 && theirs == cluster;
    Ok(Other {
        node,
        process: hello.process,
        is_ours: false,
        knows_cluster,
        incarnation: hello.incarnation,
        host: None,
        our_cluster: cluster,
    })
}

/// Who answered, or why we do not talk.
pub(super) fn judge_answer(
    answer: &HelloAnswer,
    to: NodeId,
    me: &Identity,
    cluster: u128,
) -> Result<Other, (RefusalCode, String)> {
    if let Some(refusal) = &answer.refusal {
        return Err((refusal.code(), refusal.text.clone()));
    }
    let (Some(node), Some(theirs)) = (answer.from(), peer::cluster_from_bytes(&answer.cluster)) else {
        let text = format!("node {} with such a cluster id cannot be", answer.node);
        return Err((RefusalCode::Unknown, text));
    };
    if node != to {
        let text =
            format!("node {node} answers at the address of node {to}: check the addresses in --cluster");
        return Err((RefusalCode::WrongNode, text));
    }
    if peer::common_version(answer.version, answer.version).is_none() {
        let text = format!("node {node} wants to speak protocol {}, which is not known here", answer.version);
        return Err((RefusalCode::Version, text));
    }
    same_cluster(node, theirs, me.node, cluster)?;
    let knows_cluster = cluster != 0 && theirs == cluster;
    Ok(Other {
        node,
        process: answer.process,
        is_ours: true,
        knows_cluster,
        incarnation: answer.incarnation,
        host: None,
        our_cluster: cluster,
    })
}

fn same_cluster(node: NodeId, theirs: u128, me: NodeId, ours: u128) -> Result<(), (RefusalCode, String)> {
    if theirs == 0 || ours == 0 || theirs == ours {
        return Ok(());
    }
    let text = format!(
        "node {node} is of cluster {theirs:032x}, node {me} of another: \
         check --cluster, or start the one that is wrong with an empty data directory"
    );
    Err((RefusalCode::OtherCluster, text))
}

/// Reads a greeting. What no node of ours says is [`io::ErrorKind::InvalidData`].
pub(super) async fn read<M: Message + Default>(stream: &mut Box<dyn Stream>) -> io::Result<M> {
    let mut head = [0; HELLO_HEAD_BYTES];
    stream.read_exact(&mut head).await?;
    let bytes = peer::greeting_bytes(&head).ok_or(io::ErrorKind::InvalidData)?;
    let mut message = vec![0; bytes];
    stream.read_exact(&mut message).await?;
    M::decode(Bytes::from(message)).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Writes a greeting.
pub(super) async fn write(stream: &mut Box<dyn Stream>, message: &impl Message) -> io::Result<()> {
    let bytes = peer::greeting(message)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the advertised address is too long"))?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// The name of a refusal, in logs.
pub(super) fn cause(code: RefusalCode) -> &'static str {
    match code {
        RefusalCode::Unknown => "refused",
        RefusalCode::Busy => "busy",
        RefusalCode::Version => "version",
        RefusalCode::OtherCluster => "other_cluster",
        RefusalCode::WrongNode => "wrong_node",
        RefusalCode::SameNumber => "same_number",
        RefusalCode::TooMany => "too_many",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Membership = Membership { cluster: 0xaa, incarnation: Some(3) };

    fn me(node: u64) -> Identity {
        Identity { node: NodeId(node), process: 70 + node, address: format!("n{node}:1") }
    }

    #[test]
    fn nodes_that_do_not_fit_are_refused_with_the_facts() {
        let good = hello(&me(2), OURS, NodeId(1));
        let other = judge(&good, &me(1), 0xaa).unwrap();
        assert_eq!((other.node, other.process, other.knows_cluster), (NodeId(2), 72, true));
        assert_eq!(other.incarnation, Some(3));
        assert!(!judge(&good, &me(1), 0).unwrap().knows_cluster);
        assert!(
            !judge(&Hello { cluster: Bytes::new(), ..good.clone() }, &me(1), 0xaa).unwrap().knows_cluster
        );
        let version = Hello { version_min: 7, version_max: 9, ..good.clone() };
        let cluster = Hello { cluster: peer::cluster_bytes(0xbb), ..good.clone() };
        for (what, hello, code, part) in [
            ("a version", version, RefusalCode::Version, "node 2 speaks protocol 7 to 9, node 1"),
            ("a cluster", cluster, RefusalCode::OtherCluster, "00bb, node 1 of another"),
            ("a target", Hello { to: 3, ..good.clone() }, RefusalCode::WrongNode, "looks for node 3"),
            ("a number", Hello { node: 1, ..good.clone() }, RefusalCode::SameNumber, "that they are node 1"),
            ("no node", Hello { node: 0, ..good.clone() }, RefusalCode::Unknown, "node 0"),
            (
                "no cluster",
                Hello { cluster: Bytes::from_static(b"x"), ..good },
                RefusalCode::Unknown,
                "cluster",
            ),
        ] {
            let (got, text) = judge(&hello, &me(1), 0xaa).unwrap_err();
            assert_eq!(got, code, "{what}");
            assert!(text.contains(part), "{what}: {text}");
        }
    }

    #[test]
    fn answers_that_do_not_fit_are_refused_with_the_facts() {
        let good = answer(&me(2), OURS, 1, None);
        let welcomed = judge_answer(&good, NodeId(2), &me(1), 0xaa).unwrap();
        assert!(welcomed.knows_cluster && welcomed.incarnation == Some(3));
        let other = HelloAnswer { cluster: peer::cluster_bytes(0xbb), ..good.clone() };
        let told = answer(&me(2), OURS, 0, Some((RefusalCode::Busy, "busy".to_owned())));
        assert!(told.cluster.is_empty() && told.incarnation.is_none(), "no stranger hears the cluster");
        for (what, answer, to, code) in [
            ("another node", good.clone(), 3, RefusalCode::WrongNode),
            ("another cluster", other, 2, RefusalCode::OtherCluster),
            ("a version", HelloAnswer { version: 9, ..good }, 2, RefusalCode::Version),
            ("a refusal", told, 2, RefusalCode::Busy),
        ] {
            assert_eq!(judge_answer(&answer, NodeId(to), &me(1), 0xaa).unwrap_err().0, code, "{what}");
        }
    }
}
