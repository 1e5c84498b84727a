//! Groups in which nothing happens: one word for all of them to each node, instead of heartbeats of each.
//!
//! What such a word means and how long it counts is in the replica (`quiet.rs` there); here it is only carried.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use model::{Elapsed, GroupId, MemberId, NodeId};
use replica::{WORD_EVERY, WORD_MAX, Word};
use tokio::time::{Instant, MissedTickBehavior, interval};
use wire::peer::PeerKind;
use wire::quiet::{QuietAnswer, QuietGroup, QuietMessage, decode};
use wire::raft::encode;

use crate::inner::Inner;

/// Looks at all groups and tells of those that are quiet, until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut ticks = interval(WORD_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = inner.stopping.cancelled() => return,
        }
        let mut words: BTreeMap<MemberId, Vec<Word>> = BTreeMap::new();
        for replica in &inner.replicas {
            let Some((word, members)) = replica.keep_quiet() else { continue };
            for member in members {
                words.entry(member).or_default().push(word.clone());
            }
        }
        for (member, words) in words {
            // At most a few at once: the answer to one is not waited for longer than it counts.
            inner.tasks.spawn(tell(inner.clone(), member, words));
        }
    }
}

/// Tells a member, and the groups whether it agrees.
async fn tell(inner: Arc<Inner>, member: MemberId, words: Vec<Word>) {
    let said = Instant::now();
    let body = encode(&QuietMessage { groups: words.iter().map(to_message).collect() });
    let asked = inner.links.call(member.node(), PeerKind::Quiet, GroupId::CATALOG, body, WORD_MAX);
    let answer = tokio::select! {
        answer = asked => answer,
        () = inner.stopping.cancelled() => return,
    };
    // Without an answer nobody agreed, and after a while the groups are quiet no more.
    let Ok(answer) = answer else { return };
    let Ok(answer) = decode::<QuietAnswer>(answer) else { return };
    if answer.incarnation != member.incarnation() {
        return;
    }
    for word in &words {
        let Some(replica) = inner.replicas.get(usize::from(word.group.0)) else { continue };
        match answer.refused.contains(&u32::from(word.group.0)) {
            true => replica.word_refused(),
            false => replica.word_agreed(member, word, said),
        }
    }
}

/// Another node said this of groups that it leads.
pub(crate) fn on_words(inner: &Inner, from: NodeId, body: Bytes) -> Result<Bytes, String> {
    let message = decode::<QuietMessage>(body).map_err(|error| error.to_string())?;
    let agrees = |group: &QuietGroup| {
        let word = from_message(group)?;
        let replica = inner.replicas.get(usize::from(word.group.0))?;
        Some(replica.hear_word(from, &word))
    };
    let refused = message.groups.iter().filter(|group| agrees(group) != Some(true));
    let refused = refused.map(|group| group.group).collect();
    Ok(encode(&QuietAnswer { incarnation: inner.member.incarnation(), refused }))
}

fn to_message(word: &Word) -> QuietGroup {
    QuietGroup { group: u32::from(word.group.0), term: word.term, last: word.last, elapsed: word.elapsed.0 }
}

fn from_message(message: &QuietGroup) -> Option<Word> {
    Some(Word {
        group: GroupId(u16::try_from(message.group).ok()?),
        term: message.term,
        last: message.last,
        elapsed: Elapsed(message.elapsed),
    })
}
