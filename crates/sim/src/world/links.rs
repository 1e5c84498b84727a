//! The network between machines: what is cut at the moment, by whom.

use std::collections::{BTreeMap, BTreeSet};

use turmoil::Sim;

use super::machine::host;

/// What stands between some pairs of hosts.
pub(crate) struct Cut {
    pairs: Vec<(String, String)>,
    how: How,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Nothing gets through.
    Both,
    /// Nothing gets through from the first to the second.
    OneWay,
    /// Nothing arrives until it is mended; then all does.
    Hold,
}

impl Cut {
    /// Nothing gets from one side to the other.
    pub(crate) fn between(side: &[u16], other: &[u16]) -> Cut {
        let pairs = side.iter().flat_map(|a| other.iter().map(|b| (host(*a), host(*b))));
        Cut { pairs: pairs.collect(), how: How::Both }
    }

    /// Nothing gets from one node to the other; back it does.
    pub(crate) fn one_way(from: u16, to: u16) -> Cut {
        Cut { pairs: vec![(host(from), host(to))], how: How::OneWay }
    }

    /// Each node reaches only its two neighbours; of three, one pair is cut.
    pub(crate) fn ring(nodes: &[u16]) -> Option<Cut> {
        let count = nodes.len();
        if count < 3 {
            return None;
        }
        let mut pairs = Vec::new();
        for (n, a) in nodes.iter().enumerate() {
            for (m, b) in nodes.iter().enumerate().skip(n + 1) {
                let are_neighbours = m == n + 1 || (n == 0 && m == count - 1 && count > 3);
                if !are_neighbours {
                    pairs.push((host(*a), host(*b)));
                }
            }
        }
        Some(Cut { pairs, how: How::Both })
    }

    /// Two hosts do not reach each other.
    pub(crate) fn pair(a: &str, b: &str) -> Cut {
        Cut { pairs: vec![(a.to_owned(), b.to_owned())], how: How::Both }
    }

    /// A host reaches nobody.
    pub(crate) fn around(host: &str, hosts: &[String]) -> Cut {
        let others = hosts.iter().filter(|other| *other != host);
        Cut { pairs: others.map(|other| (host.to_owned(), other.clone())).collect(), how: How::Both }
    }

    /// All that a host says and hears is held up.
    pub(crate) fn hold(host: &str, hosts: &[String]) -> Cut {
        Cut { how: How::Hold, ..Cut::around(host, hosts) }
    }

    fn apply(&self, sim: &Sim<'_>) {
        for (a, b) in &self.pairs {
            match self.how {
                How::Both => sim.partition(a.as_str(), b.as_str()),
                How::OneWay => sim.partition_oneway(a.as_str(), b.as_str()),
                How::Hold => sim.hold(a.as_str(), b.as_str()),
            }
        }
    }
}

/// What is cut at the moment.
pub(crate) struct Links {
    hosts: Vec<String>,
    cuts: BTreeMap<u64, Cut>,
    next: u64,
    dark: BTreeSet<String>,
}

impl Links {
    pub(crate) fn new(hosts: Vec<String>) -> Links {
        Links { hosts, cuts: BTreeMap::new(), next: 0, dark: BTreeSet::new() }
    }

    /// All machines.
    pub(crate) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Cuts; the number is for mending.
    pub(crate) fn cut(&mut self, sim: &Sim<'_>, cut: Cut) -> u64 {
        self.next += 1;
        self.cuts.insert(self.next, cut);
        self.apply(sim);
        self.next
    }

    /// Takes a cut away.
    pub(crate) fn mend(&mut self, sim: &Sim<'_>, id: u64) {
        let Some(cut) = self.cuts.remove(&id) else { return };
        for (a, b) in &cut.pairs {
            sim.release(a.as_str(), b.as_str());
        }
        self.apply(sim);
    }

    /// A machine has no power.
    pub(crate) fn darken(&mut self, sim: &Sim<'_>, host: &str) {
        self.dark.insert(host.to_owned());
        self.apply(sim);
    }

    /// It has power again.
    pub(crate) fn light(&mut self, sim: &Sim<'_>, host: &str) {
        self.dark.remove(host);
        for other in self.hosts.iter().filter(|other| *other != host) {
            sim.release(host, other.as_str());
        }
        self.apply(sim);
    }

    /// Mends all but the power.
    pub(crate) fn clear(&mut self, sim: &Sim<'_>) {
        self.cuts.clear();
        for (n, a) in self.hosts.iter().enumerate() {
            for b in &self.hosts[n + 1..] {
                sim.release(a.as_str(), b.as_str());
            }
        }
        self.apply(sim);
    }

    /// Brings the network in line: what is held first, so that what cuts off wins.
    fn apply(&self, sim: &Sim<'_>) {
        for how in [How::Hold, How::OneWay, How::Both] {
            self.cuts.values().filter(|cut| cut.how == how).for_each(|cut| cut.apply(sim));
        }
        for host in &self.dark {
            Cut::around(host, &self.hosts).apply(sim);
        }
    }
}
