//! One lie in a true history, of each kind that a broken queue would tell.

// All lies have one form, and some add lines.
#![allow(clippy::ptr_arg)]

use model::{ShardId, StateKind, TaskId, WallTime};
use sim::check::Promise;
use sim::history::{Call, Deed, Line, Outcome};

use crate::random::Random;

/// A lie: what it is, which promise it breaks, and how it is told. It says whether the history has a place for it.
pub(crate) type Lie = (&'static str, Promise, fn(&mut Vec<Line>, &mut Random) -> bool);

pub(crate) const LIES: &[Lie] = &[
    ("an acknowledged task is gone", Promise::Kept, gone),
    ("a task is missing in the list", Promise::Kept, unlisted),
    ("a done task waits again", Promise::Linearizable, undone),
    ("a payload changed", Promise::NotInvented, changed),
    ("a dedup key made a second task", Promise::OnceIn, twice),
    ("a fence was given twice", Promise::FencesRise, same_fence),
    ("an old token counted", Promise::Fenced, stale),
    ("a done task was claimed", Promise::Final, claimed_again),
    ("a claim was taken before its deadline", Promise::Held, taken),
    ("an order key was overtaken", Promise::InOrder, overtaken),
    ("an answer came from before the last one", Promise::Linearizable, old_index),
    ("a replica differs", Promise::SameEverywhere, other_hash),
    ("a delayed task was claimed early", Promise::NeverEarly, early),
    ("one attempt too many", Promise::Attempts, too_many),
    ("a count is short", Promise::CountsConserved, short),
    ("a follow-up came twice", Promise::FollowUpsOnce, followed_twice),
    ("a follow-up never came", Promise::FollowUpsOnce, not_followed),
    ("a term went back", Promise::VotesKept, old_term),
];

/// The calls that were answered and that `which` picks, by their places.
fn places(lines: &[Line], which: impl Fn(&Call) -> bool) -> Vec<usize> {
    let calls = lines.iter().enumerate().filter_map(|(n, line)| match line {
        Line::Call(call) if call.outcome == Outcome::Ok && which(call) => Some(n),
        _ => None,
    });
    calls.collect()
}

fn call(lines: &mut [Line], n: usize) -> &mut Call {
    match &mut lines[n] {
        Line::Call(call) => call,
        other => panic!("{other:?} is no call"),
    }
}

/// Changes one of the calls that `which` picks.
fn change(
    lines: &mut [Line],
    random: &mut Random,
    which: impl Fn(&Call) -> bool,
    how: impl FnOnce(&mut Call, &mut Random),
) -> bool {
    let Some(&n) = random.pick(&places(lines, which)) else { return false };
    how(call(lines, n), random);
    true
}

fn is_listed(call: &Call) -> bool {
    call.client == "list"
}

fn gone(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    change(lines, random, is_listed, |call, _| call.outcome = Outcome::Rejected("not_found".to_owned()))
}

fn task_of(deed: &Deed) -> Option<TaskId> {
    match deed {
        Deed::Get { task, .. } => Some(*task),
        Deed::Ack(settle) | Deed::Fail(settle) | Deed::Release(settle) => Some(settle.task),
        Deed::Extend(hold) | Deed::Progress(hold) => Some(hold.task),
        Deed::PutBack(on) | Deed::Discard(on) | Deed::Cancel(on) | Deed::Requeue(on) => on.task,
        _ => None,
    }
}

fn unlisted(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let named = places(lines, |call| matches!(&call.deed, Deed::Enqueue(enqueue) if !enqueue.duplicate));
    let Some(&n) = random.pick(&named) else { return false };
    let Deed::Enqueue(enqueue) = &call(lines, n).deed else { return false };
    let task = enqueue.task;
    lines.retain(|line| !matches!(line, Line::Call(call) if matches!(call.deed, Deed::Get { .. }) && task_of(&call.deed) == task));
    true
}

fn undone(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let acked: Vec<TaskId> = places(lines, |call| matches!(call.deed, Deed::Ack(_)))
        .into_iter()
        .filter_map(|n| task_of(&call(lines, n).deed))
        .collect();
    let which =
        |call: &Call| is_listed(call) && task_of(&call.deed).is_some_and(|task| acked.contains(&task));
    change(lines, random, which, |call, _| {
        if let Deed::Get { state, .. } = &mut call.deed {
            *state = Some(StateKind::Ready);
        }
    })
}

fn has_got(call: &Call) -> bool {
    matches!(&call.deed, Deed::Claim(claim) if !claim.got.is_empty())
}

fn changed(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    change(lines, random, has_got, |call, _| {
        if let Deed::Claim(claim) = &mut call.deed {
            claim.got[0].payload = "another".to_owned();
        }
    })
}

fn fresh(random: &mut Random) -> TaskId {
    TaskId::new(ShardId::new(1).unwrap(), WallTime::from_millis(1), random.next())
}

fn twice(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let which = |call: &Call| matches!(&call.deed, Deed::Enqueue(enqueue) if enqueue.duplicate);
    change(lines, random, which, |call, random| {
        if let Deed::Enqueue(enqueue) = &mut call.deed {
            (enqueue.task, enqueue.duplicate) = (Some(fresh(random)), false);
        }
        call.index.0.clear();
    })
}

fn same_fence(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let claims = places(lines, has_got);
    let Some(&n) = random.pick(&claims) else { return false };
    let Deed::Claim(one) = call(lines, n).deed.clone() else { return false };
    let (task, fence) = (one.got[0].task, one.got[0].fence);
    let others = |call: &Call| match &call.deed {
        Deed::Claim(claim) => {
            claim.got.iter().any(|got| got.task != task && got.task.shard() == task.shard())
        }
        _ => false,
    };
    change(lines, random, others, |call, _| {
        if let Deed::Claim(claim) = &mut call.deed {
            let mut others =
                claim.got.iter_mut().filter(|got| got.task != task && got.task.shard() == task.shard());
            others.next().unwrap().fence = fence;
        }
    })
}

fn stale(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let refused: Vec<usize> = (0..lines.len())
        .filter(|&n| match &lines[n] {
            Line::Call(call) => {
                let with_token =
                    matches!(call.deed, Deed::Ack(_) | Deed::Fail(_) | Deed::Release(_) | Deed::Extend(_));
                with_token && call.outcome == Outcome::Rejected("stale_token".to_owned())
            }
            _ => false,
        })
        .collect();
    let Some(&n) = random.pick(&refused) else { return false };
    let call = call(lines, n);
    call.outcome = Outcome::Ok;
    match &mut call.deed {
        Deed::Fail(fail) => fail.state = Some(StateKind::Retrying),
        Deed::Ack(ack) => ack.state = Some(StateKind::Done),
        _ => {}
    }
    true
}

/// A claim like one that was answered, later, with a fence of its own.
fn claim_like(lines: &[Line], n: usize, task: TaskId, start_us: u64) -> Option<Line> {
    let Line::Call(mut copy) = lines[n].clone() else { return None };
    let fences = lines.iter().filter_map(|line| match line {
        Line::Call(Call { deed: Deed::Claim(claim), .. }) => claim.got.iter().map(|got| got.fence).max(),
        _ => None,
    });
    let fence = fences.max()? + 1;
    (copy.start_us, copy.end_us) = (start_us, start_us + 10);
    copy.index.0.clear();
    if let Deed::Claim(claim) = &mut copy.deed {
        claim.request = None;
        claim.got.retain(|got| got.task == task);
        claim.got[0].fence = fence;
        claim.got[0].attempt = 1;
    }
    Some(Line::Call(copy))
}

fn claimed_again(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let acked = places(lines, |call| matches!(call.deed, Deed::Ack(_)));
    let Some(&n) = random.pick(&acked) else { return false };
    let (task, end) = (task_of(&call(lines, n).deed), call(lines, n).end_us);
    let Some(task) = task else { return false };
    let claims = places(
        lines,
        |call| matches!(&call.deed, Deed::Claim(claim) if claim.got.iter().any(|got| got.task == task)),
    );
    let Some(line) = claims.first().and_then(|&claim| claim_like(lines, claim, task, end + 5)) else {
        return false;
    };
    lines.push(line);
    true
}

fn taken(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let Some(&n) = random.pick(&places(lines, |call| {
        has_got(call) && matches!(&call.deed, Deed::Claim(claim) if claim.hold_ms >= Some(500))
    })) else {
        return false;
    };
    let end = call(lines, n).end_us;
    let Deed::Claim(claim) = &call(lines, n).deed else { return false };
    let task = claim.got[0].task;
    let Some(line) = claim_like(lines, n, task, end + 5) else { return false };
    lines.push(line);
    true
}

fn overtaken(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    // The second of a line is claimed as soon as it is enqueued.
    let keyed =
        places(lines, |call| matches!(&call.deed, Deed::Enqueue(enqueue) if enqueue.order_key.is_some()));
    let Some(&n) = random.pick(&keyed) else { return false };
    let (end, task) = match call(lines, n) {
        Call { end_us, deed: Deed::Enqueue(enqueue), .. } => (*end_us, enqueue.task.unwrap()),
        _ => return false,
    };
    let claims = places(
        lines,
        |call| matches!(&call.deed, Deed::Claim(claim) if claim.got.iter().any(|got| got.task == task)),
    );
    let Some(&claim) = claims.first() else { return false };
    let late = call(lines, claim).start_us > end + 1_000_000;
    if late {
        let claim = call(lines, claim);
        (claim.start_us, claim.end_us) = (end + 5, end + 15);
        claim.index.0.clear();
    }
    late
}

fn old_index(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let indexed = places(lines, |call| !call.index.is_empty());
    let Some(&one) = random.pick(&indexed) else { return false };
    let (end, index) = (call(lines, one).end_us, call(lines, one).index.clone());
    let later =
        |call: &Call| call.start_us > end && !call.index.is_empty() && call.index.0[0].0 == index.0[0].0;
    let Some(&other) = random.pick(&places(lines, later)) else { return false };
    let other_index = call(lines, other).index.clone();
    call(lines, one).index = other_index;
    call(lines, other).index = index;
    true
}

fn other_hash(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let hashes: Vec<usize> = (0..lines.len()).filter(|&n| matches!(lines[n], Line::Hash(_))).collect();
    let Some(&n) = random.pick(&hashes) else { return false };
    if let Line::Hash(hash) = &mut lines[n] {
        hash.hash.push('f');
    }
    true
}

fn early(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let delayed =
        places(lines, |call| matches!(&call.deed, Deed::Enqueue(enqueue) if enqueue.delay_ms > Some(200)));
    let Some(&n) = random.pick(&delayed) else { return false };
    let (end, task) = match call(lines, n) {
        Call { end_us, deed: Deed::Enqueue(enqueue), .. } => (*end_us, enqueue.task.unwrap()),
        _ => return false,
    };
    let claims = places(
        lines,
        |call| matches!(&call.deed, Deed::Claim(claim) if claim.got.iter().any(|got| got.task == task)),
    );
    let Some(&claim) = claims.first() else { return false };
    let claim = call(lines, claim);
    (claim.start_us, claim.end_us) = (end + 5, end + 15);
    claim.index.0.clear();
    true
}

fn too_many(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    change(lines, random, has_got, |call, _| {
        if let Deed::Claim(claim) = &mut call.deed {
            claim.got[0].attempt += 5;
        }
    })
}

fn short(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let which = |call: &Call| matches!(&call.deed, Deed::Counts(counts) if counts.totals.enqueued > 20);
    change(lines, random, which, |call, random| {
        if let Deed::Counts(counts) = &mut call.deed {
            match random.below(3) {
                0 => counts.totals.enqueued /= 2,
                1 => counts.totals.done = counts.totals.done * 2 + 30,
                _ => counts.depth.ready += counts.totals.enqueued,
            }
        }
    })
}

fn is_follow_up(payload: &str) -> bool {
    payload.starts_with("p20") && payload.len() == 8
}

fn followed_twice(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let which = |call: &Call| match &call.deed {
        Deed::Claim(claim) => claim.got.iter().any(|got| is_follow_up(&got.payload)),
        _ => false,
    };
    let Some(&n) = random.pick(&places(lines, which)) else { return false };
    let Line::Call(mut copy) = lines[n].clone() else { return false };
    if let Deed::Claim(claim) = &mut copy.deed {
        claim.got.retain(|got| is_follow_up(&got.payload));
        claim.got.truncate(1);
        (claim.got[0].task, claim.got[0].fence) = (fresh(random), u64::MAX / 2);
    }
    copy.index.0.clear();
    lines.push(Line::Call(copy));
    true
}

fn not_followed(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let which = |call: &Call| matches!(&call.deed, Deed::Ack(ack) if !ack.then.is_empty());
    let Some(&n) = random.pick(&places(lines, which)) else { return false };
    let Deed::Ack(ack) = &call(lines, n).deed else { return false };
    let payload = ack.then[0].payload.clone();
    let tasks: Vec<TaskId> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Call(Call { deed: Deed::Get { task, payload: Some(seen), .. }, .. })
                if *seen == payload =>
            {
                Some(*task)
            }
            _ => None,
        })
        .collect();
    for line in lines.iter_mut() {
        if let Line::Call(Call { deed: Deed::Claim(claim), .. }) = line {
            claim.got.retain(|got| !tasks.contains(&got.task));
        }
    }
    lines.retain(|line| match line {
        Line::Call(call) => task_of(&call.deed).is_none_or(|task| !tasks.contains(&task)),
        _ => true,
    });
    true
}

fn old_term(lines: &mut Vec<Line>, random: &mut Random) -> bool {
    let votes: Vec<usize> =
        (0..lines.len()).filter(|&n| matches!(&lines[n], Line::Vote(vote) if vote.term > 1)).collect();
    let Some(&n) = random.pick(&votes) else { return false };
    if let Line::Vote(vote) = &mut lines[n] {
        vote.term -= if random.percent(50) { 1 } else { vote.term };
        // In the same term as before, the vote is for another.
    }
    true
}
