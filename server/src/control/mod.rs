//! The control plane: everything a broker knows besides messages and offsets.
//!
//! One thread with a runtime of its own owns topics, consumer groups, their members, queue locks and
//! the connections to the name servers. Data threads hand it every request that is not theirs
//! ([`ToControl::Request`]), and read what it decided from immutable snapshots ([`Published`])
//! without a lock. It works in turns: take what waits in the channel, change the tables, make the
//! changes durable through [`Facts`] in one go, publish one snapshot, answer. So 5,000 heartbeats
//! that arrive at once cost one snapshot and at most one flush.
//!
//! Invariants: nothing is published or answered before the facts it rests on are durable; a turn
//! whose facts fail leaves no trace in the tables; a oneway request is never answered.
//!
//! What the sender of [`ToControl`] owes:
//! - [`ToControl::Closed`] follows the last request of its connection through the channel, so that no
//!   heartbeat revives a connection that is gone. It is sent once per connection.
//! - The task that receives [`ToThread`] never waits for a connection nor for the control channel:
//!   the control thread waits while that channel is full.
//!
//! Elsewhere: the name server in [`crate::namesrv`].

pub(crate) mod answer;
mod bodies;
mod broker;
mod facts;
pub(crate) mod files;
mod groups;
mod locks;
mod members;
mod published;
mod registration;
mod requests;
mod service;
mod snapshots;
mod start;
#[cfg(test)]
pub(crate) mod testing;
mod topics;

use std::{future::Future, net::SocketAddr, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use ringmq_protocol::names::NameError;
use tokio::sync::{mpsc, oneshot};

pub use self::{
    published::{
        Catalog, ConsumeType, FilterType, GroupConfig, GroupView, Groups, MessageModel,
        PERM_INHERIT, PERM_READ, PERM_WRITE, Published, SubscriptionView, TopicConfig,
    },
    start::{ControlHandle, StartError, start},
    topics::QUEUES_PER_TOPIC_MAX,
};
use crate::{
    context::{ConnId, RequestContext},
    metrics::FigureSource,
};

/// Messages that may wait for the control thread. A sender waits while it is full.
pub const TO_CONTROL_CAPACITY: usize = 4096;

/// Messages that may wait for one data thread. The control thread waits while it is full, and drops
/// notifications instead.
pub const TO_THREAD_CAPACITY: usize = 4096;

/// What data threads send to the control thread.
#[derive(Debug)]
pub enum ToControl {
    /// A request that no data thread handles, unknown codes included. The answer, if the request is
    /// not oneway, arrives as [`ToThread::Send`] for `ctx.conn` on its thread's channel, in any
    /// order with other answers.
    Request {
        /// Who asks.
        ctx: RequestContext,
        /// One whole frame, its four length bytes included.
        frame: Bytes,
    },
    /// A connection ended. Its group members go at once.
    Closed {
        /// The connection; its generation tells it from a later one in the same slot.
        conn: ConnId,
    },
    /// A send found no topic.
    CreateTopic {
        /// The topic to create.
        topic: Box<str>,
        /// How.
        how: NewTopic,
        /// Receives the topic once it is durable and published, and known to the name servers or
        /// their time for it is over. Also if another request created it meanwhile.
        reply: oneshot::Sender<Result<Arc<TopicConfig>, CreateTopicError>>,
    },
    /// A pull or a send-back found no configuration for its group.
    EnsureGroup {
        /// The consumer group.
        group: Box<str>,
        /// Receives the configuration once it is durable and published, or `None` where the group
        /// may not be created by itself (answer 26).
        reply: oneshot::Sender<Option<Arc<GroupConfig>>>,
    },
}

/// By which rule a topic comes to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewTopic {
    /// From a template topic, as a send header asks. Source: `createTopicInSendMessageMethod`.
    FromTemplate {
        /// Header field `defaultTopic` (`c`), normally `TBW102`.
        default_topic: Box<str>,
        /// Header field `defaultTopicQueueNums` (`d`).
        queue_nums: i32,
        /// Header field `unitMode` (`k`).
        unit_mode: bool,
    },
    /// A retry or dead-letter topic of a group: this many queues, readable and writable.
    /// Source: `createTopicInSendMessageBackMethod`.
    OfGroup {
        /// Read and write queues.
        queue_nums: u32,
        /// Sets the sub-unit flag.
        unit_mode: bool,
    },
}

/// Why a topic was not created.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateTopicError {
    /// The name breaks a rule; its text is the remark. Answer 1.
    Name(NameError),
    /// The template does not exist or may not be inherited from. Answer 17.
    NoTemplate,
    /// The send, or the template, would give the topic no queues. Answer 1, to 5.x clients 29.
    NoQueues,
    /// This many topics exist already, and no more may. Answer 1.
    TooMany(usize),
    /// The store did not take the topic, in words for the log. Answer 1; a retry may succeed.
    Store(String),
}

/// What the control thread sends to a data thread.
#[derive(Debug)]
pub enum ToThread {
    /// Write these bytes to the connection, if it still exists.
    Send {
        /// Where to.
        conn: ConnId,
        /// One whole frame, its length included.
        bytes: Bytes,
    },
    /// Write these bytes to all these connections, as far as they exist and take them: a notice that
    /// may be lost.
    Notify {
        /// Where to.
        conns: Vec<ConnId>,
        /// One whole frame.
        bytes: Bytes,
    },
    /// Close the connection: its group membership expired.
    Close {
        /// Which.
        conn: ConnId,
    },
}

/// One thing that the broker remembers: a key and its value, or its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// At most a few hundred bytes, starts with [`FACT_PREFIX`].
    pub key: Box<[u8]>,
    /// `None` removes the key.
    pub value: Option<Box<[u8]>>,
}

/// Key and value of a fact that the store kept.
pub type StoredFact = (Box<[u8]>, Box<[u8]>);

/// Every fact key of the control plane starts like this; no other part may write such keys.
pub const FACT_PREFIX: &[u8] = b"control/";

/// A future that the control thread may wait for.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Where facts become durable: shard 0 of the store, reached through its thread.
pub trait Facts: Send + Sync {
    /// Makes the facts durable, in order. They count as one change: the future is ready when all are
    /// committed.
    ///
    /// # Errors
    ///
    /// A line for the log. The control thread then undoes the turn; facts that became durable all
    /// the same only reappear at the next start.
    fn put(&self, facts: Vec<Fact>) -> BoxFuture<Result<(), String>>;

    /// Deletes the queues of a topic on all shards, and the offsets of its consumers. Nothing of it
    /// is published any more when this is called.
    ///
    /// # Errors
    ///
    /// A line for the log. Some of it may be deleted then.
    fn delete_topic(&self, topic: Arc<str>) -> BoxFuture<Result<(), String>>;

    /// The committed consumer offsets of all shards, for the file that people read and for admin
    /// requests. `None` where the store cannot list them; both are left out then.
    fn consumer_offsets(&self) -> BoxFuture<Option<Vec<ConsumerOffset>>> {
        Box::pin(std::future::ready(None))
    }
}

/// One committed consumer offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerOffset {
    /// Topic of the queue.
    pub topic: Box<str>,
    /// Consumer group.
    pub group: Box<str>,
    /// Queue of the topic.
    pub queue_id: u32,
    /// Next offset to consume, in messages.
    pub queue_offset: i64,
}

/// What the control thread needs to know about its broker.
#[derive(Clone, Debug)]
pub struct BrokerControlConfig {
    /// `brokerClusterName`, `DefaultCluster` by default.
    pub cluster_name: String,
    /// `brokerName`.
    pub broker_name: String,
    /// `brokerId`, 0 for a master.
    pub broker_id: u64,
    /// The address that clients dial, `host:port`, as it goes into routes.
    pub advertised_addr: String,
    /// The address told as that of replication, `host:port` (listen port + 1).
    pub ha_server_addr: String,
    /// Name servers, `host:port` each. Empty: the broker registers nowhere.
    pub namesrv_addrs: Vec<String>,
    /// `registerNameServerPeriod`, clamped to 10 to 60 s.
    pub register_period: Duration,
    /// `autoCreateTopicEnable`.
    pub auto_create_topic: bool,
    /// `autoCreateSubscriptionGroup`.
    pub auto_create_group: bool,
    /// `clusterTopicEnable`.
    pub cluster_topic: bool,
    /// `brokerTopicEnable`.
    pub broker_topic: bool,
    /// `traceTopicEnable`.
    pub trace_topic: bool,
    /// `msgTraceTopicName`, `RMQ_SYS_TRACE_TOPIC` by default.
    pub trace_topic_name: String,
    /// `defaultTopicQueueNums`, 8 by default.
    pub default_topic_queue_nums: u32,
    /// `brokerPermission`, 6 by default.
    pub permission: u32,
    /// `notifyConsumerIdsChangedEnable`.
    pub notify_consumer_ids_changed: bool,
    /// `compressedRegister`.
    pub compressed_register: bool,
    /// Where `topics.json` and its siblings are written for people to read. `None`: nowhere.
    pub snapshot_dir: Option<PathBuf>,
}

/// What the control thread needs to know about its name server.
#[derive(Clone, Debug)]
pub struct NamesrvControlConfig {
    /// Where it listens. Port 0 takes a free one, see [`ControlHandle::namesrv_addr`].
    pub listen: SocketAddr,
    /// Where `kvConfig.json` lives; created if missing.
    pub data_dir: PathBuf,
    /// `orderMessageEnable`: routes carry the queues of ordered topics.
    pub order_messages: bool,
}

/// What the control thread needs to know to serve figures for monitoring.
#[derive(Clone)]
pub struct MetricsControlConfig {
    /// Where it listens. Port 0 takes a free one, see [`ControlHandle::metrics_addr`].
    pub listen: SocketAddr,
    /// Where the broker's figures come from, if there is one.
    pub source: Option<Arc<dyn FigureSource>>,
}

/// The broker's side of the control thread. `None` for a process that is only a name server.
pub struct BrokerControl {
    /// Names, addresses and switches.
    pub config: BrokerControlConfig,
    /// Where topics and groups are kept.
    pub facts: Arc<dyn Facts>,
    /// Every fact whose key starts with [`FACT_PREFIX`], as the store had them when it was opened.
    pub stored: Vec<StoredFact>,
    /// Where the data threads look. Filled before [`start`] returns.
    pub published: Arc<Published>,
    /// The receiving end of a channel of [`TO_CONTROL_CAPACITY`].
    pub requests: mpsc::Receiver<ToControl>,
    /// One channel of [`TO_THREAD_CAPACITY`] per data thread, at the index of [`ConnId`]'s thread.
    pub threads: Vec<mpsc::Sender<ToThread>>,
}

/// Everything that the control thread starts with: broker, name server or both.
pub struct ControlConfig {
    /// The broker.
    pub broker: Option<BrokerControl>,
    /// The name server.
    pub namesrv: Option<NamesrvControlConfig>,
    /// The page for monitoring.
    pub metrics: Option<MetricsControlConfig>,
    /// Milliseconds since 1970, from the clock module.
    pub epoch_ms: fn() -> i64,
}
