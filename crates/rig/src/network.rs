//! A network of this process alone: a namespace for each node, a bridge that joins them, cuts and loss between them.
//!
//! Made with `ip` and `nft`, removed with the value. What a rig that was killed left behind is removed by the next one:
//! every name carries the process id. The rig itself stands on the bridge, so clients reach every node whatever is cut
//! between nodes; lost packets are lost for everybody.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;
use crate::system::{run, run_with};

/// Begins every name. Names of interfaces have at most 15 characters.
const NAME: &str = "rg";
pub(crate) const HTTP_PORT: u16 = 7420;
pub(crate) const PEER_PORT: u16 = 7421;
/// Where the proxy of the first node listens, on the bridge.
const PROXY_PORT: u16 = 21_000;
/// The last part of the address from which the proxy speaks for the first node.
const SPEAKS_FOR: u8 = 100;
const BRIDGE: u8 = 254;

/// A network; nodes are counted from 0.
pub(crate) struct Network {
    tag: String,
    subnet: [u8; 2],
    size: usize,
    /// Who does not hear whom.
    deaf: BTreeSet<(usize, usize)>,
    /// Percent of packets that each node loses.
    loss: Vec<u32>,
}

impl Network {
    /// A network for so many nodes.
    pub(crate) fn new(size: usize) -> Result<Network, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let tag = format!("{NAME}{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let network =
            Network { tag, subnet: free_subnet()?, size, deaf: BTreeSet::new(), loss: vec![0; size] };
        network.build()?;
        Ok(network)
    }

    /// From here on its value has to remove what is there.
    fn build(&self) -> Result<(), Error> {
        let bridge = &self.tag;
        run(&format!("ip link add {bridge} type bridge"))?;
        run(&format!("ip addr add {}/24 dev {bridge}", self.ip(BRIDGE)))?;
        run(&format!("ip link set {bridge} up"))?;
        for n in 0..self.size {
            let (space, outside) = (self.namespace(n), format!("{bridge}n{n}"));
            run(&format!("ip addr add {}/24 dev {bridge}", self.speaks_for(n)))?;
            run(&format!("ip netns add {space}"))?;
            run(&format!("ip link add {outside} type veth peer name eth0 netns {space}"))?;
            run(&format!("ip link set {outside} master {bridge} up"))?;
            run(&format!("ip -n {space} link set lo up"))?;
            run(&format!("ip -n {space} addr add {}/24 dev eth0", self.address(n)))?;
            run(&format!("ip -n {space} link set eth0 up"))?;
        }
        Ok(())
    }

    fn namespace(&self, n: usize) -> String {
        format!("{}-{n}", self.tag)
    }

    /// Words before a program that put it into a node's network, and change nothing else: its mounts must be ours,
    /// or what we unmount lives on in the copies of other nodes.
    pub(crate) fn enter(&self, n: usize) -> String {
        format!("nsenter --net=/var/run/netns/{}", self.namespace(n))
    }

    fn ip(&self, last: u8) -> IpAddr {
        let [a, b] = self.subnet;
        Ipv4Addr::new(10, a, b, last).into()
    }

    fn address(&self, n: usize) -> IpAddr {
        self.ip(1 + n as u8)
    }

    /// From where the proxy speaks for a node.
    pub(crate) fn speaks_for(&self, n: usize) -> IpAddr {
        self.ip(SPEAKS_FOR + n as u8)
    }

    pub(crate) fn http(&self, n: usize) -> SocketAddr {
        SocketAddr::new(self.address(n), HTTP_PORT)
    }

    pub(crate) fn peer(&self, n: usize) -> SocketAddr {
        SocketAddr::new(self.address(n), PEER_PORT)
    }

    /// Where the proxy to a node listens.
    pub(crate) fn proxy(&self, n: usize) -> SocketAddr {
        SocketAddr::new(self.ip(BRIDGE), PROXY_PORT + n as u16)
    }

    /// Whoever is first of a pair hears nothing of the second any more.
    pub(crate) fn deafen(&mut self, pairs: impl IntoIterator<Item = (usize, usize)>) -> Result<(), Error> {
        self.deaf.extend(pairs);
        self.set_all()
    }

    /// Each of these loses so many percent of what it is sent.
    pub(crate) fn lose(&mut self, nodes: &[usize], percent: u32) -> Result<(), Error> {
        nodes.iter().for_each(|&n| self.loss[n] = percent);
        self.set_all()
    }

    /// All hear all again.
    pub(crate) fn join(&mut self) -> Result<(), Error> {
        self.deaf.clear();
        self.set_all()
    }

    /// Nothing is lost any more.
    pub(crate) fn lose_nothing(&mut self) -> Result<(), Error> {
        self.loss.fill(0);
        self.set_all()
    }

    fn set_all(&self) -> Result<(), Error> {
        (0..self.size).try_for_each(|n| self.set(n))
    }

    /// What comes in and is cut is dropped without a word, as by a broken cable.
    fn set(&self, n: usize) -> Result<(), Error> {
        let mut rules = String::new();
        for &(_, from) in self.deaf.iter().filter(|(who, _)| *who == n) {
            rules += &format!("ip saddr {{ {}, {} }} drop\n", self.address(from), self.speaks_for(from));
            let proxy = self.proxy(from);
            rules += &format!("ip saddr {} tcp sport {} drop\n", proxy.ip(), proxy.port());
        }
        if self.loss[n] > 0 {
            rules += &format!("numgen random mod 100 < {} drop\n", self.loss[n]);
        }
        if !rules.is_empty() {
            rules = format!(
                "table inet faults {{\nchain in {{\ntype filter hook input priority 0;\n{rules}}}\n}}\n"
            );
        }
        run_with(&format!("{} nft -f -", self.enter(n)), &format!("flush ruleset\n{rules}")).map(drop)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for n in 0..self.size {
            let _ = run(&format!("ip netns del {}", self.namespace(n)));
        }
        let _ = run(&format!("ip link del {}", self.tag));
    }
}

/// Removes the networks of rigs that are no more.
pub(crate) fn remove_leftovers() -> Result<(), Error> {
    let is_left = |name: &str| {
        let pid: String =
            name.strip_prefix(NAME).unwrap_or_default().chars().take_while(char::is_ascii_digit).collect();
        let is_ours = !pid.is_empty() && name[NAME.len() + pid.len()..].starts_with('x');
        is_ours && !Path::new("/proc").join(pid).exists()
    };
    for line in run("ip netns list")?.lines() {
        if let Some(name) = line.split_whitespace().next().filter(|name| is_left(name)) {
            run(&format!("ip netns del {name}"))?;
        }
    }
    for line in run("ip -o link show type bridge")?.lines() {
        let name = line.split(": ").nth(1).unwrap_or_default();
        if is_left(name) {
            run(&format!("ip link del {name}"))?;
        }
    }
    Ok(())
}

/// A part of 10.0.0.0/8 to which there is no route here but the default one.
fn free_subnet() -> Result<[u8; 2], Error> {
    let routes = run("ip route show")?;
    let first = std::process::id();
    (0..1000)
        .map(|n| (first + n * 257).to_le_bytes())
        .map(|[a, b, ..]| [64 + a % 128, b])
        .find(|[a, b]| !routes.contains(&format!("10.{a}.{b}.")) && !routes.contains(&format!("10.{a}.0.0")))
        .ok_or_else(|| Error::Usage("every subnet of 10.0.0.0/8 is taken".to_owned()))
}
