//! All data threads of a broker: from a folder and an address to threads that serve, and back.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use ringmq_engine::{
    Acknowledge, EpochMillis, RecoveryReport, RingShard, Store, StoreGuard, StoreOptions,
};
use ringmq_protocol::{
    encode::SentAnswers,
    properties::{NAME_SEPARATOR, name},
};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use super::{
    Shared,
    start::{self, ThreadStart, ToData},
};
use crate::{
    broker::query::QUERIES_MAX,
    clock,
    config::{BrokerConfig, SHARDS_DEFAULT},
    context::Authorizer,
    control::{
        BoxFuture, ConsumerOffset, FACT_PREFIX, Fact, Facts, Published, ToControl, ToThread,
    },
    link, memory,
    metrics::{BrokerFigures, FigureSource},
    net::listen::{RETRY, RETRY_STEP, listen},
};

/// Requests of the rest of the process that may wait for one data thread.
const REQUESTS_MAX: usize = 1024;

/// Keys and values of facts.
pub(crate) type Stored = Vec<(Box<[u8]>, Box<[u8]>)>;

/// What the control plane and a broker's data threads share.
pub(crate) struct Wiring {
    pub(crate) published: Arc<Published>,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) to_control: mpsc::Sender<ToControl>,
}

/// The data threads of a broker.
pub(crate) struct Plane {
    pub(crate) shared: Arc<Shared>,
    threads: Vec<Running>,
    listener: Option<TcpListener>,
    /// Where clients connect.
    pub(crate) local_addr: SocketAddr,
    /// Where old clients connect for what they hold to be urgent, see [`open_vip`].
    pub(crate) vip_addr: Option<SocketAddr>,
    /// Facts of the control plane as they were stored.
    pub(crate) stored: Stored,
    /// For the control plane: one receiver's counterpart per thread.
    pub(crate) to_threads: Vec<mpsc::Sender<ToThread>>,
    /// What the store says about itself, one line each.
    pub(crate) notes: Vec<String>,
    /// When its appends count.
    pub(crate) acknowledge: Acknowledge,
    _guard: StoreGuard,
}

struct Running {
    requests: mpsc::Sender<ToData>,
    join: Option<JoinHandle<Result<(), String>>>,
}

impl Plane {
    /// Binds the address, opens the store and starts the threads. Nothing is accepted yet.
    ///
    /// # Errors
    ///
    /// One line with cause and cure.
    pub(crate) fn start(mut config: BrokerConfig, wiring: Wiring) -> Result<Self, String> {
        let listener = bind(config.listen)?;
        let local_addr = listener.local_addr().map_err(|error| error.to_string())?;
        if config.advertise.port() == 0 {
            config.advertise.set_port(local_addr.port());
        }
        let store = open(&config)?;
        let mut notes = describe(&store);
        let acknowledge = store.acknowledge();
        let shards = store.shard_count();
        let count = usize::try_from(shards).expect("shards are few");
        // A store that was made on more cores opens on fewer.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = config.threads.unwrap_or(cores).clamp(1, count);
        if let Some(asked) = config.threads.filter(|asked| *asked > threads) {
            notes.push(format!(
                "{asked} threads asked for, {threads} run: a shard is served by one thread, and the \
                 store has {shards}; --shards sets their number when a store is made"
            ));
        }
        let store = store.into_shards();
        let (stored, segment_len, store_shards) = look_into(store.shards);
        if let Some(asked) = config.segment_len.filter(|asked| *asked != segment_len) {
            return Err(format!(
                "the store has segments of {segment_len} bytes, not {asked}; their size is fixed \
                 when the store is created: remove segmentSize, or choose another folder"
            ));
        }
        let cluster_pair =
            [name::CLUSTER.as_bytes(), &[NAME_SEPARATOR], config.cluster.as_bytes()].concat();
        let store_host = SocketAddr::V4(config.advertise);
        let links = link::mesh(threads, config.limits.link_entries);
        let shared = Arc::new(Shared {
            published: wiring.published,
            to_control: wiring.to_control,
            authorizer: wiring.authorizer,
            store_host,
            sent_answers: SentAnswers::new(store_host, &config.region, config.trace_on),
            cluster_pair: cluster_pair.into(),
            shards,
            threads,
            segment_len,
            queries: Arc::new(Semaphore::new(QUERIES_MAX)),
            conns: AtomicUsize::new(0),
            drained: AtomicUsize::new(0),
            fatal: Notify::new(),
            config,
        });
        let mut plane = Self {
            shared,
            threads: Vec::new(),
            listener: Some(listener),
            local_addr,
            vip_addr: None,
            stored,
            to_threads: Vec::new(),
            notes,
            acknowledge,
            _guard: store.guard,
        };
        let mut dealt: Vec<Vec<(u32, RingShard)>> = (0..threads).map(|_| Vec::new()).collect();
        for (number, shard) in (0..).zip(store_shards) {
            let thread = usize::try_from(number).unwrap_or(0) % threads;
            if let Some(own) = dealt.get_mut(thread) {
                own.push((number, shard));
            }
        }
        for (index, (shards, links)) in dealt.into_iter().zip(links).enumerate() {
            if let Err(line) = plane.start_thread(index, shards, links) {
                plane.stop();
                return Err(line);
            }
        }
        Ok(plane)
    }

    fn start_thread(
        &mut self,
        index: usize,
        shards: Vec<(u32, RingShard)>,
        links: link::Links<super::Question, super::Answer>,
    ) -> Result<(), String> {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        let (to_thread, control) = mpsc::channel(crate::control::TO_THREAD_CAPACITY);
        let (ready, started) = oneshot::channel();
        let shared = self.shared.clone();
        let start =
            ThreadStart { index, shared, shards, links, requests: received, control, ready };
        let join = std::thread::Builder::new()
            .name(format!("ringmq-data-{index}"))
            .spawn(move || start::run(start))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        self.threads.push(Running { requests, join: Some(join) });
        self.to_threads.push(to_thread);
        match started.blocking_recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(no_ring(&error)),
            Err(_) => Err("a data thread ended before it had started".to_owned()),
        }
    }

    /// Begins to accept connections.
    pub(crate) fn accept(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        // Only now, so that it takes no port that another part of the process was told to use.
        let vip = open_vip(&self.shared.config);
        self.vip_addr = vip.as_ref().and_then(|vip| vip.local_addr().ok());
        let dealt: Vec<_> = self.threads.iter().map(|thread| thread.requests.clone()).collect();
        for listener in [Some(listener), vip].into_iter().flatten() {
            if let Some(first) = self.threads.first() {
                // The channel was made just now and is not full.
                let _ = first.requests.blocking_send(ToData::Listen(listener, dealt.clone()));
            }
        }
    }

    /// Where the control plane keeps its facts.
    pub(crate) fn facts(&self) -> Arc<dyn Facts> {
        Arc::new(ShardFacts(self.threads.iter().map(|thread| thread.requests.clone()).collect()))
    }

    /// Where figures for monitoring come from.
    pub(crate) fn figures(&self) -> Arc<dyn FigureSource> {
        let threads = self.threads.iter().map(|thread| thread.requests.clone()).collect();
        Arc::new(ThreadSource { threads, shared: self.shared.clone() })
    }

    /// Stops accepting and serving, flushes, and closes the store. Blocks. One line for each thing
    /// that went wrong.
    pub(crate) fn stop(&mut self) -> Vec<String> {
        self.listener = None;
        for thread in &self.threads {
            // Fails where the thread has ended already.
            let _ = thread.requests.blocking_send(ToData::Stop);
        }
        let mut failed = Vec::new();
        for thread in &mut self.threads {
            match thread.join.take().map(JoinHandle::join) {
                Some(Ok(Err(line))) => failed.push(line),
                Some(Err(_)) => failed.push("a data thread panicked".to_owned()),
                Some(Ok(Ok(()))) | None => {}
            }
        }
        failed
    }
}

fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    listen(address, RETRY).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "cannot listen on {address}: the address is in use by another process; stop that \
             process, or choose another address with --listen"
        ),
        _ => format!("cannot listen on {address}: {error}; choose another address with --listen"),
    })
}

/// The socket of the VIP channel, two ports below the broker's own. Clients up to 4.5 send there
/// unless they are told not to, and know no other way; whatever comes is served like everything else.
/// A broker that cannot have the port works for all others. One that takes any free port (0) has
/// none, since it would be as random.
///
/// Source: `fastRemotingServer` in `BrokerController`.
fn open_vip(config: &BrokerConfig) -> Option<TcpListener> {
    /// Long enough for a predecessor that was killed, whose other port is free already.
    const PATIENCE: Duration = Duration::from_millis(200);
    let port =
        config.listen.port().checked_sub(2).filter(|port| *port > 0 && config.vip_channel)?;
    let address = SocketAddr::new(config.listen.ip(), port);
    listen(address, PATIENCE)
        .map_err(|error| {
            tracing::warn!(
                "no VIP channel on {address}: {error}; clients before 4.6 need it unless they turn \
                 it off, and vipChannelEnable=false in broker.conf ends this line"
            );
        })
        .ok()
}

fn open(config: &BrokerConfig) -> Result<Store, String> {
    let mut options = StoreOptions::default();
    let is_new = !config.data.join("manifest").exists();
    options.shards = config.shards.or(is_new.then_some(SHARDS_DEFAULT));
    options.block_len = config.block_len;
    if let Some(len) = config.segment_len {
        options.segment_len = len;
    }
    options.disk_budget = config.disk_budget.map(|budget| budget.0);
    options.acknowledge = config.ack.map(Acknowledge::from);
    if let Some(folder) = &config.buffer_dir {
        options.buffer_dir.clone_from(folder);
    }
    let limits = &mut options.limits;
    limits.age_ms = u64::try_from(config.message_age.as_millis()).unwrap_or(u64::MAX);
    limits.tail_bytes = config.memory.tail.unwrap_or(limits.tail_bytes);
    limits.large_bytes = config.memory.large.unwrap_or(limits.large_bytes);
    match config.memory.read {
        Some(bytes) => limits.cold_bytes = bytes,
        None => options.cold_bytes = Some(memory::read_bytes()),
    }
    let id = random_id().map_err(|error| format!("cannot read /dev/urandom: {error}"))?;
    let start = clock::instant();
    loop {
        let now = EpochMillis::new(clock::epoch_ms());
        match Store::open(&config.data, &options, id, now) {
            Ok(store) => return Ok(store),
            // The locked memory of a process that was killed is charged for a moment longer.
            Err(ringmq_engine::OpenError::RingForbidden(error))
                if error.kind() == io::ErrorKind::OutOfMemory && start.elapsed() < RETRY =>
            {
                clock::pause(RETRY_STEP);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn random_id() -> io::Result<u128> {
    let mut bytes = [0; 16];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u128::from_be_bytes(bytes))
}

fn no_ring(error: &io::Error) -> String {
    format!(
        "io_uring is not available: {error}; allow the io_uring system calls (in containers: a \
         seccomp profile that permits them; kernel.io_uring_disabled = 0)"
    )
}

fn describe(store: &Store) -> Vec<String> {
    let mut notes = Vec::new();
    if !store.is_direct() {
        notes.push("the file system refuses direct writes: the page cache is used".to_owned());
    }
    if store.block_len() >= 4096 {
        notes.push(format!(
            "blocks of {} bytes: a message that travels alone takes as much of the log",
            store.block_len()
        ));
    }
    if let Some(physical) = store.physical_block_len().filter(|len| *len > store.block_len()) {
        notes.push(format!(
            "the device writes {physical} bytes at a time, the store {}: on disks that overwrite in \
             place a power cut can damage a neighbouring message; a new store with --block-size \
             {physical} avoids it",
            store.block_len()
        ));
    }
    for (shard, report) in store.reports().iter().enumerate() {
        let RecoveryReport { groups, bytes, torn_bytes, damaged, unreadable, .. } = *report;
        let RecoveryReport { restored_groups, restored_bytes, lost_bytes_max, .. } = *report;
        if restored_groups > 0 {
            tracing::info!(
                shard,
                restored_groups,
                restored_bytes,
                "what the last process left in shared memory is on the device now"
            );
        }
        if lost_bytes_max > 0 {
            notes.push(format!(
                "shard {shard}: the machine has stopped, or shared memory was removed, while messages \
                 were acknowledged from it: up to {lost_bytes_max} bytes of the newest are lost, and \
                 their queue offsets are given out again"
            ));
        }
        if damaged > 0 || unreadable > 0 {
            tracing::error!(shard, damaged, unreadable, "the log is damaged");
        }
        if groups > 0 || torn_bytes > 0 {
            tracing::info!(shard, groups, bytes, torn_bytes, "the log was replayed");
        }
    }
    notes
}

/// The control plane's facts on shard 0, and the length of segments.
fn look_into(mut shards: Vec<RingShard>) -> (Stored, u64, Vec<RingShard>) {
    let mut stored = Vec::new();
    let mut segment_len = 1;
    if let Some(first) = shards.first_mut() {
        let shard = first.shard();
        segment_len = shard.geometry().segment_len();
        let facts = shard.facts_with_prefix(FACT_PREFIX);
        stored.extend(facts.map(|(key, value)| (key.into(), value.into())));
    }
    (stored, segment_len, shards)
}

/// Facts on shard 0, which is always on the first thread.
struct ShardFacts(Vec<mpsc::Sender<ToData>>);

impl Facts for ShardFacts {
    fn put(&self, facts: Vec<Fact>) -> BoxFuture<Result<(), String>> {
        let first = self.0.first().cloned();
        Box::pin(async move {
            let gone = || "the broker is stopping".to_owned();
            let (reply, done) = oneshot::channel();
            let first = first.ok_or_else(gone)?;
            first.send(ToData::PutFacts(facts, reply)).await.map_err(|_| gone())?;
            done.await.map_err(|_| gone())?
        })
    }

    fn delete_topic(&self, topic: Arc<str>) -> BoxFuture<Result<(), String>> {
        let threads = self.0.clone();
        Box::pin(async move {
            let gone = || "the broker is stopping".to_owned();
            for thread in threads {
                let (reply, deleted) = oneshot::channel();
                let message = ToData::DeleteTopic(topic.clone(), reply);
                thread.send(message).await.map_err(|_| gone())?;
                deleted.await.map_err(|_| gone())??;
            }
            Ok(())
        })
    }

    fn consumer_offsets(&self) -> BoxFuture<Option<Vec<ConsumerOffset>>> {
        let threads = self.0.clone();
        Box::pin(async move {
            let mut offsets = Vec::new();
            for thread in threads {
                let (reply, listed) = oneshot::channel();
                thread.send(ToData::ListOffsets(reply)).await.ok()?;
                offsets.extend(listed.await.ok()?);
            }
            Some(offsets)
        })
    }
}

/// Figures of all data threads together.
struct ThreadSource {
    threads: Vec<mpsc::Sender<ToData>>,
    shared: Arc<Shared>,
}

impl FigureSource for ThreadSource {
    fn figures(&self) -> BoxFuture<Option<BrokerFigures>> {
        let (threads, shared) = (self.threads.clone(), self.shared.clone());
        Box::pin(async move {
            let mut figures = BrokerFigures {
                connections: shared.conns.load(Ordering::Relaxed),
                topics: shared.published.catalog.load().topics.len(),
                consumer_groups: shared.published.groups.load().groups.len(),
                ..BrokerFigures::default()
            };
            for thread in threads {
                let (reply, told) = oneshot::channel();
                thread.send(ToData::Figures(reply)).await.ok()?;
                let told = told.await.ok()?;
                figures.shards.extend(told.shards);
                figures.stalled += told.stalled;
                figures.parked_pulls += told.parked_pulls;
            }
            figures.shards.sort_unstable_by_key(|shard| shard.shard);
            Some(figures)
        })
    }
}
