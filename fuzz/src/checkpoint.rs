//! A checkpoint's rows: a shard or the catalog, loaded from any keys and values.

use std::collections::BTreeMap;

use bytes::Bytes;
use model::command::{Ack, Claim, ClaimQueue, Dedup, Fail, Unique, UniqueUntil};
use model::{
    Command, Digest, Elapsed, Fence, FollowUp, KeyHash, Millis, NewTask, Position, QueueName, Reply,
    SessionId, ShardId, Start, TaskId, WallTime, Wishes, WorkerName,
};
use state_machine::{Catalog, Change, Damaged, Effects, Machine, Shard, Table};

use crate::pieces::{Pieces, put_bytes};
use crate::{allocation, says_why};

const SHARDS: u16 = 4;
const KEY_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 4096;
const ROWS_MAX: usize = 256;
/// The first byte of an input: the rows are the catalog's.
const CATALOG: u8 = 255;

/// Rows as a store holds them: by table and key.
pub(crate) type Rows = BTreeMap<(u8, Vec<u8>), Vec<u8>>;
/// One of them.
pub(crate) type Row = ((u8, Vec<u8>), Vec<u8>);

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let rows: Rows = shard_rows().into_iter().collect();
    let mut seeds = vec![[vec![0], rows_as_bytes(&rows)].concat()];
    for table in Table::ALL {
        let some = rows.iter().filter(|((of, _), _)| *of == table as u8 || *of <= Table::Queues as u8);
        let some: Rows = some.map(|(key, value)| (key.clone(), value.clone())).collect();
        seeds.push([vec![0], rows_as_bytes(&some)].concat());
    }
    let mut catalog = Catalog::new();
    let queue = QueueName::new("mail").expect("a good name");
    let set = model::catalog::CatalogCommand::SetQueue { queue, settings: model::QueueSettings::default() };
    let at = Position { index: 1, n: 0, elapsed: Elapsed(1), wall: WallTime::from_millis(1) };
    let _ = catalog.apply(at, set, &mut Effects::default());
    seeds.push([vec![CATALOG], rows_as_bytes(&cut(&mut catalog).into_iter().collect())].concat());
    seeds
}

pub(crate) fn run(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let rows = rows_of(&mut Pieces(rest));
    let bytes_max = 1024 * 1024 + 64 * rest.len();
    allocation::within(bytes_max, || match *choice {
        CATALOG => loaded_twice(Catalog::new, &rows),
        _ => loaded_twice(shard, &rows),
    });
}

/// An empty shard.
pub(crate) fn shard() -> Shard {
    Shard::new(ShardId::new(1).expect("a good shard"), SHARDS)
}

/// Loading is refused with why, or gives a machine that can be asked, the same each time.
pub(crate) fn loaded_twice<M: Machine>(new: impl Fn() -> M, rows: &Rows) {
    let mut facts = Vec::new();
    for _ in 0..2 {
        match load(new(), rows) {
            Err(damaged) => return says_why(&damaged.to_string()),
            Ok(mut machine) => {
                facts.push((machine.hash(), machine.next_due(), machine.stamps(), machine.changed()))
            }
        }
    }
    assert_eq!(facts[0], facts[1]);
}

fn load<M: Machine>(mut machine: M, rows: &Rows) -> Result<M, Damaged> {
    for table in Table::ALL {
        let of_table = rows.iter().filter(|((of, _), _)| *of == table as u8);
        for ((_, key), value) in of_table {
            machine.load(table, key, value)?;
        }
    }
    machine.loaded()?;
    Ok(machine)
}

/// Rows from any bytes.
pub(crate) fn rows_of(pieces: &mut Pieces<'_>) -> Rows {
    let mut rows = Rows::new();
    while !pieces.is_empty() && rows.len() < ROWS_MAX {
        let table = pieces.byte();
        let (key, value) = (pieces.bytes(KEY_BYTES_MAX), pieces.bytes(VALUE_BYTES_MAX));
        rows.insert((table, key.to_vec()), value.to_vec());
    }
    rows
}

/// The opposite of [`rows_of`].
pub(crate) fn rows_as_bytes(rows: &Rows) -> Vec<u8> {
    let mut bytes = Vec::new();
    for ((table, key), value) in rows {
        bytes.push(*table);
        put_bytes(&mut bytes, key);
        put_bytes(&mut bytes, value);
    }
    bytes
}

fn cut(machine: &mut impl Machine) -> Vec<Row> {
    let mut changes: Vec<Change> = Vec::new();
    machine.cut();
    while machine.cut_some(100, &mut changes) {}
    changes.into_iter().filter_map(|change| Some(((change.table as u8, change.key), change.value?))).collect()
}

/// The rows of a shard with a task in every state that comes easily.
pub(crate) fn shard_rows() -> Vec<Row> {
    let mut shard = shard();
    let mut index = 0;
    let mut apply = |command| {
        index += 1;
        let at =
            Position { index, n: 0, elapsed: Elapsed(index), wall: WallTime::from_millis(1_000_000 + index) };
        shard.apply(at, command, &mut Effects::default()).ok()
    };
    let key = KeyHash(7);
    let plain: Vec<NewTask> = (1..=8).map(|n| task(1, n)).collect();
    let keyed = [
        wishing(11, Wishes { order_key: Some(key), ..Wishes::default() }),
        wishing(12, Wishes { order_key: Some(key), ..Wishes::default() }),
        wishing(13, Wishes { dedup: Some(Dedup { key, window: Millis(5) }), ..Wishes::default() }),
        wishing(14, Wishes { unique: Some(Unique { key, until: UniqueUntil::Final }), ..Wishes::default() }),
        wishing(
            15,
            Wishes { start: Start::After(Millis(5_000)), expires_in: Some(Millis(9)), ..Wishes::default() },
        ),
        wishing(16, Wishes { hold: Some(Millis(200)), retention: Some(Millis(1)), ..Wishes::default() }),
    ];
    apply(Command::Enqueue { tasks: plain.into_iter().chain(keyed).collect(), atomic: false });
    let claim = Claim {
        queues: vec![ClaimQueue { name: queue(), weight: 0 }],
        worker: WorkerName::new("w1").expect("a good name"),
        session: Some(SessionId(9)),
        max: 4,
        hold: None,
        request: Some(KeyHash(3)),
    };
    let claimed: Vec<(TaskId, Fence)> = match apply(Command::Claim(claim)) {
        Some(Reply::Claimed(claims)) => claims.iter().map(|claim| (claim.id, claim.fence)).collect(),
        _ => Vec::new(),
    };
    if let [(first, fence), (second, second_fence), ..] = claimed[..] {
        let then = vec![FollowUp { shard: ShardId::new(2).expect("a good shard"), task: task(2, 21) }];
        apply(Command::Ack(Ack { task: first, fence, output: Bytes::new(), then }));
        let fail = Fail {
            task: second,
            fence: second_fence,
            error: "e".to_owned(),
            detail: String::new(),
            retry_in: None,
            fatal: false,
        };
        apply(Command::Fail(fail));
    }
    cut(&mut shard)
}

fn queue() -> QueueName {
    QueueName::new("mail").expect("a good name")
}

fn wishing(n: u64, wishes: Wishes) -> NewTask {
    NewTask { wishes: wishes.boxed(), ..task(1, n) }
}

fn task(shard: u16, n: u64) -> NewTask {
    NewTask {
        id: TaskId::new(ShardId::new(shard).expect("a good shard"), WallTime::from_millis(1), n),
        queue: queue(),
        kind_hash: 0,
        digest: Digest(1),
        priority: 5,
        wishes: None,
        envelope: Bytes::new(),
    }
}
