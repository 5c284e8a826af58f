//! Which broker has which topic: the state of a name server, without any I/O.
//!
//! A broker is known by name and consists of addresses, one per broker id. An address lives as long
//! as it registers in time and its connection stands; when the last address of a name goes, the
//! queues of that name go with it. Topics that a registration does not list are kept, since brokers
//! also send registrations with only what changed.
//!
//! Invariants: every live address is the address of its broker id, or has been replaced there; a
//! broker name without addresses is in no table; a topic without queues is in no table.
//!
//! Source: Apache RocketMQ 4.9.8, `RouteInfoManager`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    time::{Duration, Instant},
};

use ringmq_protocol::{body::DataVersion, names::validate_topic};

/// Broker addresses that a name server knows at most.
pub const ADDRESSES_MAX: usize = 10_000;
/// Topics times brokers that have them: entries that a name server knows at most.
pub const ENTRIES_MAX: usize = 1_000_000;
/// Bytes in the name of a broker or cluster, or in an address.
pub const BROKER_TEXT_LEN_MAX: usize = 255;
/// How long an address lives without a registration, unless it names its own time.
pub const SILENCE_MAX: Duration = Duration::from_secs(120);
/// The longest time that an address may name.
const NAMED_SILENCE_MAX: Duration = Duration::from_secs(3600);

/// Permission bit: producers may write. Source: `PermName.PERM_WRITE`.
const PERM_WRITE: i32 = 2;
/// Read and write. Source: `PermName`.
const PERM_READ_WRITE: i32 = 6;
/// Topic flag. Source: `TopicSysFlag.FLAG_UNIT`.
const FLAG_UNIT: i32 = 1;
/// Topic flag. Source: `TopicSysFlag.FLAG_UNIT_SUB`.
const FLAG_UNIT_SUB: i32 = 2;

/// One connection to the name server, over the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(pub u64);

/// The queues of one topic on one broker name. Queue counts and permission as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Queues that consumers read.
    pub read: i32,
    /// Queues that producers write.
    pub write: i32,
    /// Permission bits.
    pub perm: i32,
    /// Unit flags.
    pub sys_flag: i32,
}

/// One address of one broker, as requests name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// Cluster name.
    pub cluster: &'a str,
    /// Broker name.
    pub name: &'a str,
    /// Broker id, 0 for the master.
    pub id: i64,
    /// `host:port` that clients dial.
    pub addr: &'a str,
}

/// What a broker says of itself.
#[derive(Clone, Debug)]
pub struct Registration<'a> {
    /// Who.
    pub address: Address<'a>,
    /// `host:port` of its replication.
    pub ha_addr: &'a str,
    /// After how much silence it wants to be dropped.
    pub silence_max: Option<Duration>,
    /// Its topics and their version, `None` if the request has no body.
    pub topics: Option<(DataVersion, Vec<(String, Queues)>)>,
}

/// What a broker is told about its master, if it is not the master itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Master {
    /// Address that clients dial.
    pub addr: String,
    /// Address of its replication.
    pub ha_addr: String,
}

/// Why a registration was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// This field of the request breaks this rule. Answer 1.
    Field(&'static str, BadText),
    /// [`ADDRESSES_MAX`] addresses are known. Answer 1.
    TooManyAddresses,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(field, rule) => write!(f, "{field} {rule}"),
            Self::TooManyAddresses => {
                write!(f, "{ADDRESSES_MAX} brokers are known, and no more are taken")
            }
        }
    }
}

impl std::error::Error for RegisterError {}

/// Why a name or number in a registration is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadText {
    /// Nothing but white space.
    Blank,
    /// Longer than [`BROKER_TEXT_LEN_MAX`].
    TooLong,
    /// It has control characters.
    Control,
    /// Tools make files of it, and it would lead out of their folder.
    Path,
    /// Below zero.
    Negative,
}

impl fmt::Display for BadText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("is blank"),
            Self::TooLong => write!(f, "is longer than {BROKER_TEXT_LEN_MAX} bytes"),
            Self::Control => f.write_str("has control characters"),
            Self::Path => f.write_str("must not be a path: no slashes, no dots alone"),
            Self::Negative => f.write_str("is negative"),
        }
    }
}

/// Everything a name server knows about brokers and topics.
#[derive(Debug, Default)]
pub struct RouteTable {
    /// Cluster name to broker names.
    clusters: BTreeMap<String, BTreeSet<String>>,
    /// By broker name.
    brokers: BTreeMap<String, Broker>,
    /// By address.
    live: HashMap<String, Live>,
    /// Topic to broker name to queues.
    topics: BTreeMap<String, BTreeMap<String, Queues>>,
    /// Entries in all inner maps of `topics`.
    entries: usize,
}

#[derive(Debug)]
struct Broker {
    cluster: String,
    addrs: BTreeMap<i64, String>,
}

#[derive(Debug)]
struct Live {
    name: String,
    id: i64,
    seen: Instant,
    silence_max: Duration,
    version: DataVersion,
    peer: Peer,
    ha_addr: String,
}

/// One broker of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteBroker<'a> {
    /// Broker name.
    pub name: &'a str,
    /// Cluster name.
    pub cluster: &'a str,
    /// Broker id to address.
    pub addrs: &'a BTreeMap<i64, String>,
}

/// The route of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    /// Broker name and its queues.
    pub queues: Vec<(&'a str, Queues)>,
    /// The brokers named in `queues`.
    pub brokers: Vec<RouteBroker<'a>>,
}

/// Which flags a topic must have to be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitTopics {
    /// Request 311.
    Unit,
    /// Request 312.
    UnitSub,
    /// Request 313.
    UnitSubNotUnit,
}

impl RouteTable {
    /// Takes a registration. The answer names the master, if the broker is not the master itself.
    ///
    /// # Errors
    ///
    /// [`RegisterError`]; nothing has changed then.
    pub fn register(
        &mut self,
        registration: Registration<'_>,
        peer: Peer,
        now: Instant,
    ) -> Result<Option<Master>, RegisterError> {
        let Registration { address, ha_addr, silence_max, topics } = registration;
        check_address(&address)?;
        if ha_addr.len() > BROKER_TEXT_LEN_MAX {
            return Err(RegisterError::Field("haServerAddr", BadText::TooLong));
        }
        if !self.live.contains_key(address.addr) && self.live.len() >= ADDRESSES_MAX {
            return Err(RegisterError::TooManyAddresses);
        }
        let id_is_new = self.place(&address);
        let (version, topics) = topics.unwrap_or_default();
        let known = self.live.get(address.addr).map(|live| live.version);
        if address.id == 0 && (id_is_new || known != Some(version)) {
            self.take_topics(address.name, topics);
        }
        let live = Live {
            name: address.name.to_owned(),
            id: address.id,
            seen: now,
            silence_max: silence_max.map_or(SILENCE_MAX, |time| time.min(NAMED_SILENCE_MAX)),
            version,
            peer,
            ha_addr: ha_addr.to_owned(),
        };
        self.live.insert(address.addr.to_owned(), live);
        Ok(self.master_for(&address))
    }

    /// Puts an address under its name and id; true if that id was free.
    fn place(&mut self, address: &Address<'_>) -> bool {
        let broker = self.brokers.entry(address.name.to_owned()).or_insert_with(|| Broker {
            cluster: address.cluster.to_owned(),
            addrs: BTreeMap::new(),
        });
        if broker.cluster != address.cluster {
            let old = std::mem::replace(&mut broker.cluster, address.cluster.to_owned());
            leave_cluster(&mut self.clusters, &old, address.name);
        }
        // A master that became a slave, or the other way round, registers the same address under
        // another id.
        broker.addrs.retain(|id, addr| *id == address.id || addr != address.addr);
        let id_is_new = broker.addrs.insert(address.id, address.addr.to_owned()).is_none();
        self.clusters
            .entry(address.cluster.to_owned())
            .or_default()
            .insert(address.name.to_owned());
        id_is_new
    }

    fn take_topics(&mut self, broker_name: &str, topics: Vec<(String, Queues)>) {
        for (topic, queues) in topics {
            // One bad name costs that topic, not the broker's other topics.
            if validate_topic(&topic).is_err() {
                continue;
            }
            let known =
                self.topics.get_mut(&topic).and_then(|brokers| brokers.get_mut(broker_name));
            if let Some(known) = known {
                *known = queues;
            } else if self.entries < ENTRIES_MAX {
                self.topics.entry(topic).or_default().insert(broker_name.to_owned(), queues);
                self.entries += 1;
            }
        }
    }

    fn master_for(&self, address: &Address<'_>) -> Option<Master> {
        if address.id == 0 {
            return None;
        }
        let addr = self.brokers.get(address.name)?.addrs.get(&0)?;
        let live = self.live.get(addr)?;
        Some(Master { addr: addr.clone(), ha_addr: live.ha_addr.clone() })
    }

    /// Drops one address because its broker says so.
    pub fn unregister(&mut self, address: &Address<'_>) {
        let named = self
            .live
            .get(address.addr)
            .is_some_and(|live| live.name == address.name && live.id == address.id);
        if named {
            self.drop_address(address.addr);
        }
    }

    /// Drops every address that registered over this connection.
    pub fn connection_closed(&mut self, peer: Peer) -> Vec<String> {
        self.drop_where(|live| live.peer == peer)
    }

    /// Drops every address that was silent for too long, and says which.
    pub fn expire(&mut self, now: Instant) -> Vec<String> {
        self.drop_where(|live| now.saturating_duration_since(live.seen) > live.silence_max)
    }

    fn drop_where(&mut self, gone: impl Fn(&Live) -> bool) -> Vec<String> {
        let addrs: Vec<String> =
            self.live.iter().filter(|(_, live)| gone(live)).map(|(addr, _)| addr.clone()).collect();
        for addr in &addrs {
            self.drop_address(addr);
        }
        addrs
    }

    fn drop_address(&mut self, addr: &str) {
        let Some(live) = self.live.remove(addr) else { return };
        let Some(broker) = self.brokers.get_mut(&live.name) else { return };
        // Another address may have taken the id since.
        if broker.addrs.get(&live.id).is_some_and(|current| current == addr) {
            broker.addrs.remove(&live.id);
        }
        if broker.addrs.is_empty() {
            let cluster = std::mem::take(&mut broker.cluster);
            self.brokers.remove(&live.name);
            leave_cluster(&mut self.clusters, &cluster, &live.name);
            self.remove_queues_of(&live.name);
        }
    }

    fn remove_queues_of(&mut self, broker_name: &str) {
        self.topics.retain(|_, brokers| {
            brokers.remove(broker_name);
            !brokers.is_empty()
        });
        self.entries = self.topics.values().map(BTreeMap::len).sum();
    }

    /// The version that an address registered last, and a sign of life from it if that is `asked`.
    pub fn query_version(
        &mut self,
        addr: &str,
        asked: Option<DataVersion>,
        now: Instant,
    ) -> Option<DataVersion> {
        let live = self.live.get_mut(addr)?;
        if asked == Some(live.version) {
            live.seen = now;
        }
        Some(live.version)
    }

    /// A sign of life. Unknown addresses are ignored.
    pub fn heartbeat(&mut self, addr: &str, now: Instant) {
        if let Some(live) = self.live.get_mut(addr) {
            live.seen = now;
        }
    }

    /// Where the queues of a topic are, or `None` if no broker with queues of it is known.
    #[must_use]
    pub fn route(&self, topic: &str) -> Option<Route<'_>> {
        let queues = self.topics.get(topic)?;
        let brokers: Vec<_> = queues.keys().filter_map(|name| self.broker(name)).collect();
        if brokers.is_empty() {
            return None;
        }
        let queues = queues.iter().map(|(name, queues)| (name.as_str(), *queues)).collect();
        Some(Route { queues, brokers })
    }

    /// The addresses of one broker name.
    #[must_use]
    pub fn broker(&self, name: &str) -> Option<RouteBroker<'_>> {
        let (name, broker) = self.brokers.get_key_value(name)?;
        Some(RouteBroker { name, cluster: &broker.cluster, addrs: &broker.addrs })
    }

    /// Every broker.
    pub fn brokers(&self) -> impl Iterator<Item = RouteBroker<'_>> {
        self.brokers.keys().filter_map(|name| self.broker(name))
    }

    /// Cluster names and the broker names in each.
    #[must_use]
    pub fn clusters(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.clusters
    }

    /// Every topic.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.keys().map(String::as_str)
    }

    /// The topics that have queues in a cluster.
    pub fn topics_of_cluster<'a>(&'a self, cluster: &str) -> impl Iterator<Item = &'a str> {
        let names = self.clusters.get(cluster);
        self.topics
            .iter()
            .filter(move |(_, brokers)| {
                names.is_some_and(|names| brokers.keys().any(|name| names.contains(name)))
            })
            .map(|(topic, _)| topic.as_str())
    }

    /// The topics with these unit flags.
    pub fn unit_topics(&self, which: UnitTopics) -> impl Iterator<Item = &str> {
        let wanted = move |flags: i32| match which {
            UnitTopics::Unit => flags & FLAG_UNIT != 0,
            UnitTopics::UnitSub => flags & FLAG_UNIT_SUB != 0,
            UnitTopics::UnitSubNotUnit => flags & (FLAG_UNIT | FLAG_UNIT_SUB) == FLAG_UNIT_SUB,
        };
        self.topics
            .iter()
            .filter(move |(_, brokers)| {
                brokers.values().next().is_some_and(|queues| wanted(queues.sys_flag))
            })
            .map(|(topic, _)| topic.as_str())
    }

    /// Takes the write permission from all queues of a broker name, until its next registration
    /// with a changed version. Returns the number of topics.
    pub fn wipe_write_perm(&mut self, broker_name: &str) -> i32 {
        self.set_perm(broker_name, |perm| perm & !PERM_WRITE)
    }

    /// Gives all queues of a broker name read and write permission. Returns the number of topics.
    pub fn add_write_perm(&mut self, broker_name: &str) -> i32 {
        self.set_perm(broker_name, |_| PERM_READ_WRITE)
    }

    fn set_perm(&mut self, broker_name: &str, perm: impl Fn(i32) -> i32) -> i32 {
        let mut count = 0;
        for queues in self.topics.values_mut().filter_map(|brokers| brokers.get_mut(broker_name)) {
            queues.perm = perm(queues.perm);
            count += 1;
        }
        count
    }

    /// Forgets a topic, in one cluster or in all.
    pub fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        let Some(mut brokers) = self.topics.remove(topic) else { return };
        self.entries -= brokers.len();
        if let Some(cluster) = cluster {
            let names = self.clusters.get(cluster);
            brokers.retain(|name, _| !names.is_some_and(|names| names.contains(name)));
            if !brokers.is_empty() {
                self.entries += brokers.len();
                self.topics.insert(topic.to_owned(), brokers);
            }
        }
    }

    /// Adds a topic on brokers that are known; others are ignored. False for a name that is not
    /// allowed.
    pub fn add_topic(&mut self, topic: &str, queues: Vec<(String, Queues)>) -> bool {
        if validate_topic(topic).is_err() {
            return false;
        }
        for (broker_name, queues) in queues {
            if self.brokers.contains_key(&broker_name) {
                self.take_topics(&broker_name, vec![(topic.to_owned(), queues)]);
            }
        }
        true
    }
}

fn leave_cluster(
    clusters: &mut BTreeMap<String, BTreeSet<String>>,
    cluster: &str,
    broker_name: &str,
) {
    if let Some(names) = clusters.get_mut(cluster) {
        names.remove(broker_name);
        if names.is_empty() {
            clusters.remove(cluster);
        }
    }
}

fn check_address(address: &Address<'_>) -> Result<(), RegisterError> {
    let in_field = |field, checked: Result<(), BadText>| {
        checked.map_err(|rule| RegisterError::Field(field, rule))
    };
    in_field("clusterName", check_name(address.cluster))?;
    in_field("brokerName", check_name(address.name))?;
    in_field("brokerAddr", check_text(address.addr))?;
    in_field("brokerId", if address.id < 0 { Err(BadText::Negative) } else { Ok(()) })
}

/// Checks the name of a broker or cluster. Upstream takes any; what is usual passes: letters of any
/// language, digits, dots in between, even spaces.
///
/// # Errors
///
/// [`BadText`]: refuse the registration or configuration.
pub(crate) fn check_name(name: &str) -> Result<(), BadText> {
    check_text(name)?;
    let is_path = name.contains(['/', '\\']) || name.trim().chars().all(|c| c == '.');
    if is_path { Err(BadText::Path) } else { Ok(()) }
}

fn check_text(text: &str) -> Result<(), BadText> {
    if text.trim().is_empty() {
        return Err(BadText::Blank);
    }
    if text.len() > BROKER_TEXT_LEN_MAX {
        return Err(BadText::TooLong);
    }
    if text.chars().any(char::is_control) { Err(BadText::Control) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
