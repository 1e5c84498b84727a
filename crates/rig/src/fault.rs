//! The faults: how each begins and how it is mended.
//!
//! A fault is begun, lasts for a while, and is healed; several may be there at once. Bits are only ever flipped on one
//! node of a cluster, the last: what a minority may lose.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::history::History;
use crate::system::{faketime, has, pause, say};

/// A server whose sync failed is gone by then.
const SYNC_DEATH_MAX: Duration = Duration::from_secs(20);
/// A server that syncs at all has done so by then.
const SYNC_MAX: Duration = Duration::from_secs(5);
/// The clock jumps by up to an hour.
const JUMP_S: i64 = 3_600;

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, later SIGCONT.
    Freeze,
    /// Some nodes on one side, the rest on the other.
    PartitionClean,
    /// One node does not hear another, which hears it.
    PartitionOneWay,
    /// Every node reaches its neighbours only; of three, two reach only the third.
    PartitionRing,
    /// Packets are lost.
    Loss,
    /// Packets are late.
    Delay,
    /// No room on one disk, or on two.
    DiskFull,
    /// A sync fails with EIO.
    FsyncError,
    /// Power is lost on one node.
    PowerLoss,
    /// Power is lost on all nodes at once.
    PowerLossAll,
    /// Bits flip on the disk of a node that is down.
    BitFlip,
    /// A wall clock jumps.
    ClockJump,
}

/// Faults that cannot be there twice at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Something is done to one process, of which there may be several.
    Process,
    Partition,
    Loss,
    Delay,
    Disk,
    Clock,
    /// Nothing else is left to break.
    Everything,
}

impl Fault {
    pub(crate) const ALL: [Fault; 13] = [
        Fault::Kill,
        Fault::Freeze,
        Fault::PartitionClean,
        Fault::PartitionOneWay,
        Fault::PartitionRing,
        Fault::Loss,
        Fault::Delay,
        Fault::DiskFull,
        Fault::FsyncError,
        Fault::PowerLoss,
        Fault::PowerLossAll,
        Fault::BitFlip,
        Fault::ClockJump,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Freeze => "freeze",
            Fault::PartitionClean => "partition",
            Fault::PartitionOneWay => "partition-one-way",
            Fault::PartitionRing => "partition-ring",
            Fault::Loss => "loss",
            Fault::Delay => "delay",
            Fault::DiskFull => "disk-full",
            Fault::FsyncError => "fsync-error",
            Fault::PowerLoss => "power-loss",
            Fault::PowerLossAll => "power-loss-all",
            Fault::BitFlip => "bit-flip",
            Fault::ClockJump => "clock-jump",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Fault> {
        Fault::ALL.into_iter().find(|fault| fault.word() == word)
    }

    pub(crate) fn class(self) -> Class {
        match self {
            Fault::Kill | Fault::Freeze | Fault::FsyncError | Fault::PowerLoss | Fault::BitFlip => {
                Class::Process
            }
            Fault::PartitionClean | Fault::PartitionOneWay | Fault::PartitionRing => Class::Partition,
            Fault::Loss => Class::Loss,
            Fault::Delay => Class::Delay,
            Fault::DiskFull => Class::Disk,
            Fault::ClockJump => Class::Clock,
            Fault::PowerLossAll => Class::Everything,
        }
    }

    /// Why it cannot be made here, if it cannot.
    pub(crate) fn missing(self) -> Option<&'static str> {
        match self {
            Fault::FsyncError if !has("strace") => Some("strace is missing (package strace)"),
            Fault::ClockJump if faketime().is_none() => Some("libfaketime is missing (package faketime)"),
            _ => None,
        }
    }
}

/// A fault that has begun.
pub(crate) struct Active {
    pub(crate) fault: Fault,
    nodes: Vec<usize>,
}

impl Active {
    /// Those that something was done to.
    pub(crate) fn nodes(&self) -> &[usize] {
        &self.nodes
    }
}

/// Where faults are made.
pub(crate) struct Site<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) history: &'a History,
    pub(crate) rng: &'a mut StdRng,
}

impl Site<'_> {
    /// Begins a fault on nodes that `taken` does not name; nothing if there is none left.
    pub(crate) fn begin(&mut self, fault: Fault, taken: &[usize]) -> Result<Option<Active>, Error> {
        let size = self.cluster.size();
        let free: Vec<usize> = (0..size).filter(|n| !taken.contains(n)).collect();
        let (Some(&last), false) = (free.last(), free.is_empty()) else { return Ok(None) };
        let one = free[self.rng.random_range(0..free.len())];
        let other = (one + self.rng.random_range(1..size)) % size;
        match fault {
            Fault::ClockJump => self.history.wrong_clock(fault.word()),
            _ => self.history.fault(fault.word()),
        }
        let nodes = match fault {
            Fault::Kill => self.cluster.kill(one).map(|()| vec![one])?,
            Fault::Freeze => self.cluster.freeze(one).map(|()| vec![one])?,
            Fault::PartitionClean => self.split()?,
            Fault::PartitionOneWay => self.cluster.network.deafen([(one, other)]).map(|()| vec![])?,
            Fault::PartitionRing => self.ring(one)?,
            Fault::Loss => self.lose()?,
            Fault::Delay => self.slow_down(one),
            Fault::DiskFull => self.fill(&free)?,
            Fault::FsyncError => self.fail_sync(one).map(|()| vec![one])?,
            Fault::PowerLoss => self.cluster.cut_power(&[one]).map(|()| vec![one])?,
            Fault::PowerLossAll => {
                let all: Vec<usize> = (0..size).collect();
                self.cluster.cut_power(&all)?;
                all
            }
            Fault::BitFlip if last != size - 1 => return Ok(None),
            Fault::BitFlip => {
                self.cluster.kill(last)?;
                let what = self.cluster.disk(last).flip(self.rng)?;
                self.cluster.mark_damaged(last);
                say(&format!("  bits flipped on node {}: {what}", last + 1));
                vec![last]
            }
            Fault::ClockJump => {
                let off_s = self.rng.random_range(-JUMP_S..=JUMP_S);
                self.cluster.set_clock(one, off_s).map(|()| vec![one])?
            }
        };
        Ok(Some(Active { fault, nodes }))
    }

    /// Mends what a fault broke.
    pub(crate) fn heal(&mut self, active: &Active) -> Result<(), Error> {
        let nodes = &active.nodes;
        match active.fault {
            Fault::Kill | Fault::FsyncError => nodes.iter().try_for_each(|&n| self.cluster.start(n)),
            Fault::Freeze => nodes.iter().try_for_each(|&n| self.cluster.thaw(n)),
            Fault::PartitionClean | Fault::PartitionOneWay | Fault::PartitionRing => {
                self.cluster.network.join()
            }
            Fault::Loss => self.cluster.network.lose_nothing(),
            Fault::Delay => {
                if let Some(proxies) = self.cluster.proxies() {
                    proxies.hurry();
                }
                Ok(())
            }
            Fault::DiskFull => nodes.iter().try_for_each(|&n| self.cluster.disk(n).empty()),
            Fault::PowerLoss | Fault::PowerLossAll => {
                self.cluster.power_on(nodes)?;
                nodes.iter().try_for_each(|&n| self.cluster.start(n))
            }
            Fault::BitFlip => {
                for &n in nodes {
                    let refused = self.cluster.start_damaged(n)?;
                    let what =
                        if refused { "refused to start, and joins again with nothing" } else { "starts" };
                    say(&format!("  node {} {what}", n + 1));
                }
                Ok(())
            }
            Fault::ClockJump => nodes.iter().try_for_each(|&n| self.cluster.set_clock(n, 0)),
        }
    }

    /// Some nodes on one side, the rest on the other.
    fn split(&mut self) -> Result<Vec<usize>, Error> {
        let size = self.cluster.size();
        let mut all: Vec<usize> = (0..size).collect();
        all.shuffle(self.rng);
        let (few, many) = all.split_at(self.rng.random_range(1..=size / 2));
        let pairs = few.iter().flat_map(|&a| many.iter().flat_map(move |&b| [(a, b), (b, a)]));
        self.cluster.network.deafen(pairs)?;
        Ok(Vec::new())
    }

    /// All but neighbours are cut off from each other; of three nodes, two that see only the third.
    fn ring(&mut self, first: usize) -> Result<Vec<usize>, Error> {
        let size = self.cluster.size();
        let is_near = |a: usize, b: usize| (a + 1) % size == b || (b + 1) % size == a;
        let mut pairs = Vec::new();
        for a in 0..size {
            let far = (0..size).filter(|&b| b != a && (size > 3 && !is_near(a, b)));
            pairs.extend(far.map(|b| (a, b)));
        }
        if size <= 3 {
            let second = (first + 1) % size;
            pairs = vec![(first, second), (second, first)];
        }
        self.cluster.network.deafen(pairs)?;
        Ok(Vec::new())
    }

    /// Some or all nodes lose a part of what they are sent.
    fn lose(&mut self) -> Result<Vec<usize>, Error> {
        let percent = self.rng.random_range(2..40);
        let all: Vec<usize> = (0..self.cluster.size()).collect();
        let some = self.rng.random_range(1..=all.len());
        self.cluster.network.lose(&all[..some], percent)?;
        Ok(Vec::new())
    }

    /// All ways are a little slow, or those of one node very.
    fn slow_down(&mut self, one: usize) -> Vec<usize> {
        let size = self.cluster.size();
        let Some(proxies) = self.cluster.proxies() else { return Vec::new() };
        let all_slow = self.rng.random_range(0..2) == 0;
        let most = Duration::from_millis(if all_slow {
            self.rng.random_range(5..150)
        } else {
            self.rng.random_range(100..1_500)
        });
        for a in 0..size {
            for b in (0..size).filter(|&b| b != a && (all_slow || a == one || b == one)) {
                proxies.delay(a, b, most);
            }
        }
        Vec::new()
    }

    /// One disk has no room any more, or two.
    fn fill(&mut self, free: &[usize]) -> Result<Vec<usize>, Error> {
        let mut nodes = free.to_vec();
        nodes.shuffle(self.rng);
        nodes.truncate(self.rng.random_range(1..=2));
        nodes.iter().try_for_each(|&n| self.cluster.disk(n).fill())?;
        Ok(nodes)
    }

    /// The next syncs of a node fail; it must not live on. One that is cut off may have nothing to sync: it is killed.
    fn fail_sync(&mut self, n: usize) -> Result<(), Error> {
        let Some(pid) = self.cluster.pid(n) else { return Ok(()) };
        let (when, seen) = (self.rng.random_range(1..4), self.cluster.strace_log(n));
        let mut command = Command::new("strace");
        // The log's writes are synced by the call itself.
        let calls = "fsync,fdatasync,pwritev2";
        command.args(["-f", "-qq", "-p", &pid.to_string(), "-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:error=EIO:when={when}+")]).arg("-o").arg(&seen);
        let strace = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let _strace = Strace(strace.map_err(Error::io("start strace"))?);
        let began = Instant::now();
        while self.cluster.ended(n).is_none() {
            let has_failed = std::fs::read_to_string(&seen).is_ok_and(|seen| seen.contains("INJECTED"));
            if has_failed && began.elapsed() > SYNC_DEATH_MAX {
                let log = self.cluster.log_end(n);
                self.history.find(format!("node {} went on after its sync failed\n    {log}", n + 1));
                return self.cluster.kill(n);
            }
            if !has_failed && began.elapsed() > SYNC_MAX {
                return self.cluster.kill(n);
            }
            pause(Duration::from_millis(50))?;
        }
        Ok(())
    }
}

/// Ends with the value.
struct Strace(Child);

impl Drop for Strace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
