//! What a checkpoint holds, and what it refuses. That it brings back the same shard is proved at
//! random points of random sequences in `against_naive.rs`.

mod naive;
mod ops;
mod pair;

use bytes::Bytes;
use model::command::{Ack, Claim, ClaimQueue, Fail};
use model::{
    Command, Digest, Elapsed, Fence, Millis, NewTask, Position, QueueName, QueuePolicy, QueueSettings, Reply,
    ShardId, TaskId, WallTime, WorkerName,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use state_machine::{Change, Effects, Machine, Shard, Table};

use crate::pair::Pair;

fn first_shard() -> ShardId {
    ShardId::new(1).expect("a good shard")
}

fn queue() -> QueueName {
    QueueName::new("mail").expect("a good name")
}

/// A shard and its log.
struct Log {
    shard: Shard,
    index: u64,
}

impl Log {
    fn new() -> Log {
        Log { shard: Shard::new(first_shard(), 1), index: 0 }
    }

    fn apply(&mut self, command: Command) -> Reply {
        self.index += 1;
        let (elapsed, wall) = (Elapsed(self.index), WallTime::from_millis(1_000_000 + self.index));
        let at = Position { index: self.index, n: 0, elapsed, wall };
        self.shard.apply(at, command, &mut Effects::default()).expect("it is not rejected")
    }

    fn enqueue(&mut self, n: u64) {
        let task = NewTask {
            id: TaskId::new(first_shard(), WallTime::from_millis(1), n),
            queue: queue(),
            kind_hash: 0,
            digest: Digest(1),
            priority: 5,
            wishes: None,
            envelope: Bytes::new(),
        };
        self.apply(Command::Enqueue { tasks: vec![task], atomic: false });
    }

    fn claim(&mut self) -> (TaskId, Fence) {
        let queues = vec![ClaimQueue { name: queue(), weight: 0 }];
        let worker = WorkerName::new("w1").expect("a good name");
        let claim = Claim { queues, worker, session: None, max: 1, hold: None, request: None };
        match self.apply(Command::Claim(claim)) {
            Reply::Claimed(claimed) => (claimed[0].id, claimed[0].fence),
            other => panic!("a claim answers {other:?}"),
        }
    }

    fn ack(&mut self) {
        let (task, fence) = self.claim();
        self.apply(Command::Ack(Ack { task, fence, output: Bytes::new(), then: vec![] }));
    }

    fn keep_no_ended_tasks(&mut self) {
        let policy = QueuePolicy { retained_max: 0, ..QueuePolicy::default() };
        let settings = QueueSettings { policy, paused: false, version: 1 };
        self.apply(Command::SetQueue { queue: queue(), settings });
    }

    fn cut(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        self.shard.cut();
        while self.shard.cut_some(3, &mut changes) {}
        changes
    }

    fn cut_executions(&mut self) -> Vec<Change> {
        self.cut().into_iter().filter(|change| change.table == Table::Executions).collect()
    }
}

#[test]
fn a_checkpoint_holds_only_what_changed_since_the_last() {
    let mut log = Log::new();
    (1..=100).for_each(|n| log.enqueue(n));
    assert_eq!(log.cut_executions().len(), 100);
    assert_eq!(log.cut_executions(), vec![]);
    log.claim();
    log.enqueue(101);
    assert_eq!(log.cut_executions().len(), 2);
}

#[test]
fn a_task_that_lives_shorter_than_a_checkpoint_never_reaches_it() {
    let mut log = Log::new();
    log.keep_no_ended_tasks();
    for n in 1..=100 {
        log.enqueue(n);
        log.ack();
    }
    assert_eq!(log.cut_executions(), vec![]);
}

#[test]
fn a_task_that_reached_a_checkpoint_is_removed_from_the_next() {
    let mut log = Log::new();
    log.keep_no_ended_tasks();
    log.enqueue(1);
    assert_eq!(log.cut_executions().len(), 1);
    log.ack();
    let changes = log.cut_executions();
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].value, None);
}

#[test]
fn a_command_during_a_cut_does_not_leak_into_it() {
    let mut log = Log::new();
    (1..=10).for_each(|n| log.enqueue(n));
    let hash = log.shard.hash();
    let mut changes = Vec::new();
    log.shard.cut();
    while log.shard.cut_some(1, &mut changes) {
        let (task, fence) = log.claim();
        let (error, detail) = ("broke".to_owned(), String::new());
        let retry_in = Some(Millis(1));
        log.apply(Command::Fail(Fail { task, fence, error, detail, retry_in, fatal: false }));
        log.apply(Command::Pulse { limit: 10 });
    }
    let mut loaded = load(&changes).expect("it is whole");
    assert_eq!(loaded.hash(), hash);
    assert_ne!(log.shard.hash(), hash);
}

fn load(changes: &[Change]) -> Result<Shard, state_machine::Damaged> {
    let mut shard = Shard::new(first_shard(), 1);
    for table in Table::ALL {
        for change in changes.iter().filter(|change| change.table == table) {
            let value = change.value.as_ref().expect("a first checkpoint removes nothing");
            shard.load(table, &change.key, value)?;
        }
    }
    shard.loaded()?;
    Ok(shard)
}

/// Whole checkpoints of shards that have seen something of everything.
fn checkpoints() -> Vec<Vec<Change>> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let sequences = ops::steps(50..60);
    let run = |n: u64| {
        let steps = sequences.new_tree(&mut runner).expect("there are sequences").current();
        let mut pair = Pair::new(1);
        // Few ended tasks are kept, so that keys and outcomes outlive them.
        let policy = QueuePolicy { retained_max: n % 3, ..QueuePolicy::default() };
        let settings = QueueSettings { policy, paused: false, version: 1 };
        pair.apply(Command::SetQueue { queue: queue(), settings }).expect("it is the first");
        let is_command = |step: &&ops::Step| !matches!(step.1, ops::Op::Checkpoint { .. } | ops::Op::Crash);
        steps.iter().filter(is_command).for_each(|step| pair.step(step));
        let mut changes = Vec::new();
        pair.twin.cut();
        while pair.twin.cut_some(100, &mut changes) {}
        changes.retain(|change| change.value.is_some());
        changes
    };
    // Nested strategies are deep in a build without optimisation.
    let roomy = std::thread::Builder::new().stack_size(64 << 20);
    std::thread::scope(|scope| {
        let run = roomy.spawn_scoped(scope, || (0..12).map(run).collect());
        run.expect("a thread can be started").join().expect("sequences run")
    })
}

#[test]
fn a_record_that_is_cut_short_or_too_long_is_refused() {
    let mut seen = Vec::new();
    for changes in checkpoints() {
        for (n, change) in changes.iter().enumerate() {
            seen.push(change.table);
            let whole = change.value.clone().expect("it was kept for that");
            // Outcomes lie one behind the other: a chunk may end after any of them.
            let bytes =
                if change.table == Table::Outcomes { whole.len() - 1..whole.len() } else { 0..whole.len() };
            for len in bytes {
                let mut damaged = changes.clone();
                damaged[n].value = Some(whole[..len].to_vec());
                assert!(load(&damaged).is_err(), "{len} of {} bytes of {:?}", whole.len(), change.table);
            }
            let mut longer = changes.clone();
            longer[n].value = Some([whole.as_slice(), &[0]].concat());
            assert!(load(&longer).is_err(), "a byte too many in {:?}", change.table);
        }
    }
    for table in Table::ALL {
        assert!(seen.contains(&table), "no checkpoint had a record in {table:?}");
    }
}
