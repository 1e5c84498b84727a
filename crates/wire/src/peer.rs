//! What nodes say to each other, and how it is framed.

/// What a message between nodes is about. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PeerKind {
    /// The link's own: is somebody there?
    Ping = 0,
    /// Entries of a group's log.
    Append = 1,
    /// Asks for a vote.
    Vote = 2,
    /// Asks whether a vote would be given.
    PreVote = 3,
    /// Hands leadership over.
    Transfer = 4,
    /// A piece of a checkpoint.
    Snapshot = 5,
    /// Commands for the leader.
    Propose = 10,
    /// Which index a read must have seen.
    ReadIndex = 11,
    /// News of sessions.
    SessionNews = 20,
    /// Who knows this session?
    SessionAsk = 21,
    /// Who are you, and do you know a cluster?
    Probe = 30,
    /// A cluster is being made.
    Found = 31,
    /// A node wants to be part of the cluster.
    Join = 32,
    /// What a node says of its groups and its clock.
    Status = 33,
    /// What a person asks of a group's leader.
    Ask = 34,
}

impl PeerKind {
    /// A kind from its number; nothing for one that this version does not know.
    pub fn from_number(number: u8) -> Option<PeerKind> {
        Some(match number {
            0 => PeerKind::Ping,
            1 => PeerKind::Append,
            2 => PeerKind::Vote,
            3 => PeerKind::PreVote,
            4 => PeerKind::Transfer,
            5 => PeerKind::Snapshot,
            10 => PeerKind::Propose,
            11 => PeerKind::ReadIndex,
            20 => PeerKind::SessionNews,
            21 => PeerKind::SessionAsk,
            30 => PeerKind::Probe,
            31 => PeerKind::Found,
            32 => PeerKind::Join,
            33 => PeerKind::Status,
            34 => PeerKind::Ask,
            _ => return None,
        })
    }
}
