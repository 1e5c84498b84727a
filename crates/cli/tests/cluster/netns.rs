//! A network of this test alone: a namespace for each node, one bridge that joins them, and cuts between any two.
//!
//! Made with `ip` and `nft`, removed with the value, also when the test panics. What a test that was killed left
//! behind is removed by the next one: every name carries the process id. The test itself stands on the bridge and
//! always reaches every node: only nodes are cut off from nodes.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::rig::Rig;

/// Names of interfaces have at most 15 characters, which leaves 7 for the process id.
const NAME: &str = "wl";

/// A network; nodes are counted from 0, as in the rig.
pub(crate) struct Network {
    /// This process and a count, as in every name.
    tag: String,
    subnet: [u8; 2],
    size: usize,
    cuts: BTreeSet<(usize, usize)>,
}

impl Network {
    /// A network for so many nodes, or why there cannot be one here.
    pub(crate) fn new(size: usize) -> Result<Network, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".to_owned());
        }
        run("nft", &["--version"], "").map_err(|why| format!("nftables is missing: {why}"))?;
        remove_leftovers()?;
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let subnet = free_subnet()?;
        let network = Network { tag: format!("{NAME}{pid}x{count}"), subnet, size, cuts: BTreeSet::new() };
        network.build()?;
        Ok(network)
    }

    /// From here on its value has to remove what is there.
    fn build(&self) -> Result<(), String> {
        let bridge = &self.tag;
        let [a, b] = self.subnet;
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("addr add 10.{a}.{b}.254/24 dev {bridge}"))?;
        ip(&format!("link set {bridge} up"))?;
        for n in 0..self.size {
            let (space, outside, address) = (self.namespace(n), format!("{bridge}n{n}"), self.address(n));
            ip(&format!("netns add {space}"))?;
            ip(&format!("link add {outside} type veth peer name eth0 netns {space}"))?;
            ip(&format!("link set {outside} master {bridge} up"))?;
            ip(&format!("-n {space} link set lo up"))?;
            ip(&format!("-n {space} addr add {address}/24 dev eth0"))?;
            ip(&format!("-n {space} link set eth0 up"))?;
        }
        Ok(())
    }

    fn namespace(&self, n: usize) -> String {
        format!("{}-{n}", self.tag)
    }

    /// Where a node is.
    pub(crate) fn address(&self, n: usize) -> IpAddr {
        let [a, b] = self.subnet;
        Ipv4Addr::new(10, a, b, u8::try_from(n).unwrap() + 1).into()
    }

    /// Puts the nodes of a rig, none of which runs yet, into this network.
    pub(crate) fn place(&self, rig: &mut Rig) {
        for n in 0..rig.nodes.len() {
            let before = ["ip", "netns", "exec", &self.namespace(n)].map(str::to_owned).to_vec();
            rig.place(n, self.address(n), before);
        }
    }

    /// Cuts all these pairs, and no others.
    pub(crate) fn cut(&mut self, pairs: &[(usize, usize)]) {
        let both_ways = pairs.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
        let before = std::mem::replace(&mut self.cuts, both_ways.collect());
        for n in 0..self.size {
            if self.cut_from(n, &self.cuts) != self.cut_from(n, &before) {
                self.drop_at(n);
            }
        }
    }

    /// Cuts one node off from all others.
    pub(crate) fn isolate(&mut self, n: usize) {
        let pairs: Vec<_> = (0..self.size).filter(|&other| other != n).map(|other| (n, other)).collect();
        self.cut(&pairs);
    }

    /// All reach all again.
    pub(crate) fn heal(&mut self) {
        self.cut(&[]);
    }

    fn cut_from(&self, n: usize, cuts: &BTreeSet<(usize, usize)>) -> Vec<usize> {
        cuts.iter().filter(|(at, _)| *at == n).map(|(_, from)| *from).collect()
    }

    /// Whatever comes from the nodes that it is cut off from is dropped without a word, as by a broken cable.
    fn drop_at(&self, n: usize) {
        let from = self.cut_from(n, &self.cuts);
        let mut rules = "flush ruleset\n".to_owned();
        if !from.is_empty() {
            let from: Vec<String> = from.iter().map(|other| self.address(*other).to_string()).collect();
            rules += &format!(
                "table inet cuts {{\nchain in {{\ntype filter hook input priority 0;\nip saddr {{ {} }} drop\n}}\n}}\n",
                from.join(", ")
            );
        }
        run("ip", &["netns", "exec", &self.namespace(n), "nft", "-f", "-"], &rules).unwrap();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for n in 0..self.size {
            let _ = ip(&format!("netns del {}", self.namespace(n)));
        }
        let _ = ip(&format!("link del {}", self.tag));
    }
}

/// Removes the networks of test processes that are no more.
fn remove_leftovers() -> Result<(), String> {
    let is_left = |name: &str| {
        let pid: String = name.strip_prefix(NAME)?.chars().take_while(char::is_ascii_digit).collect();
        let is_ours = name[NAME.len() + pid.len()..].starts_with('x');
        (is_ours && !pid.is_empty() && !std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    };
    for line in ip("netns list")?.lines() {
        if let Some(name) = line.split_whitespace().next().filter(|name| is_left(name).is_some()) {
            ip(&format!("netns del {name}"))?;
        }
    }
    for line in ip("-o link show type bridge")?.lines() {
        let name = line.split(": ").nth(1).unwrap_or_default();
        if is_left(name).is_some() {
            ip(&format!("link del {name}"))?;
        }
    }
    Ok(())
}

/// A part of 10.0.0.0/8 to which there is no route here but the default one.
fn free_subnet() -> Result<[u8; 2], String> {
    let routes = ip("route show")?;
    let first = std::process::id();
    (0..1000)
        .map(|n| (first + n * 257).to_le_bytes())
        .map(|[a, b, ..]| [64 + a % 128, b])
        .find(|[a, b]| !routes.contains(&format!("10.{a}.{b}.")) && !routes.contains(&format!("10.{a}.0.0")))
        .ok_or_else(|| "every subnet of 10.0.0.0/8 is taken".to_owned())
}

fn ip(words: &str) -> Result<String, String> {
    run("ip", &words.split(' ').collect::<Vec<_>>(), "")
}

/// Runs a program to its end: what it said, or why it failed.
fn run(program: &str, args: &[&str], input: &str) -> Result<String, String> {
    let failed = |why: String| format!("{program} {}: {why}", args.join(" "));
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).map_err(|error| failed(error.to_string()))?;
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
