//! Places for connections that have not greeted yet.
//!
//! There are few of them, since anybody can connect. No host gets more than a share, the larger one if a peer of
//! ours is there, and all hosts without a peer together leave some: whoever fills what it can does not keep the peers
//! out that are elsewhere.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Connections at once that have not greeted yet. More are closed.
const PLACES: usize = 64;
/// How many of them one host may have, unless a peer is there.
const PLACES_PER_HOST: usize = PLACES / 4;
/// How many of them one host may have where a peer is, which may not be alone there.
const PLACES_PER_PEERS_HOST: usize = PLACES / 2;
/// How many of them all such hosts may have together.
const PLACES_FOR_STRANGERS: usize = PLACES - PLACES / 4;

/// Where connections come from, as far as it tells machines apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Host {
    V4(Ipv4Addr),
    /// The network's part of an address: who has one address of it mostly has all.
    V6(u64),
    Name(String),
}

impl Host {
    /// The host of an address with a port.
    pub(super) fn of(address: &str) -> Host {
        let ip = address.parse().map(|address: SocketAddr| address.ip());
        let name = address.rsplit_once(':').map_or(address, |(host, _)| host);
        match ip.or_else(|_| name.parse()).map(|ip: IpAddr| ip.to_canonical()) {
            Ok(IpAddr::V4(ip)) => Host::V4(ip),
            Ok(IpAddr::V6(ip)) => Host::V6((ip.to_bits() >> 64) as u64),
            Err(_) => Host::Name(name.to_owned()),
        }
    }
}

/// All places. Clones are the same ones.
#[derive(Clone, Default)]
pub(super) struct Places {
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    strangers: usize,
    /// By host. As many as there are places at most.
    hosts: BTreeMap<Host, usize>,
}

/// A place that is taken. Dropped, it is free.
pub(super) struct Place {
    places: Places,
    /// Whose share it counts for.
    host: Host,
    is_strangers: bool,
}

impl Places {
    /// A place for a connection from `host`, if one is left for it.
    pub(super) fn take(&self, host: &Host, is_peers: bool) -> Option<Place> {
        let mut taken = self.taken.lock();
        let of_host = taken.hosts.get(host).copied().unwrap_or(0);
        let has_share = match is_peers {
            true => of_host < PLACES_PER_PEERS_HOST,
            false => of_host < PLACES_PER_HOST && taken.strangers < PLACES_FOR_STRANGERS,
        };
        if taken.all >= PLACES || !has_share {
            return None;
        }
        taken.all += 1;
        taken.strangers += usize::from(!is_peers);
        *taken.hosts.entry(host.clone()).or_default() += 1;
        Some(Place { places: self.clone(), host: host.clone(), is_strangers: !is_peers })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all -= 1;
        taken.strangers -= usize::from(self.is_strangers);
        if let Some(count) = taken.hosts.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                taken.hosts.remove(&self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_told_by_its_address_without_the_port() {
        let v4 = Host::V4(Ipv4Addr::new(10, 0, 0, 1));
        for (address, host) in [
            ("10.0.0.1:7421", v4.clone()),
            ("10.0.0.1", v4.clone()),
            ("[::ffff:10.0.0.1]:80", v4),
            ("[2001:db8:0:1::7]:80", Host::V6(0x2001_0db8_0000_0001)),
            ("[2001:db8:0:1:ffff::8]:81", Host::V6(0x2001_0db8_0000_0001)),
            ("n1.example:7421", Host::Name("n1.example".to_owned())),
            ("memory", Host::Name("memory".to_owned())),
        ] {
            assert_eq!(Host::of(address), host, "{address}");
        }
    }

    #[test]
    fn no_host_and_no_crowd_of_hosts_takes_all_places() {
        let places = Places::default();
        let host = |n: u8| Host::V4(Ipv4Addr::new(10, 0, 0, n));
        let fill = |n: u8, is_peers: bool| -> Vec<Place> {
            std::iter::from_fn(|| places.take(&host(n), is_peers)).take(PLACES + 1).collect()
        };
        let first = fill(1, false);
        assert_eq!(first.len(), PLACES_PER_HOST);
        let more: Vec<Vec<Place>> = (2..20).map(|n| fill(n, false)).collect();
        let strangers = first.len() + more.iter().map(Vec::len).sum::<usize>();
        assert_eq!(strangers, PLACES_FOR_STRANGERS);
        // A host that has filled its share as a stranger may be a peer's: that one is let in.
        assert!(places.take(&host(1), true).is_some());
        let peers = fill(100, true);
        assert_eq!(peers.len(), PLACES - PLACES_FOR_STRANGERS);
        assert!(places.take(&host(1), true).is_none(), "there is a bound for all");
        drop((first, more, peers));
        let (one_peer, another) = (fill(100, true), fill(101, true));
        assert_eq!(one_peer.len(), PLACES_PER_PEERS_HOST, "one peer's host does not keep the others out");
        assert_eq!(another.len(), PLACES - PLACES_PER_PEERS_HOST);
        drop((one_peer, another));
        let taken = places.taken.lock();
        assert!(taken.all == 0 && taken.strangers == 0 && taken.hosts.is_empty());
    }
}
