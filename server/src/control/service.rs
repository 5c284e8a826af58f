//! The control thread of a broker: turns, ticks, and what leaves the thread.
//!
//! A turn takes what waits in the channel, changes the state, stores the facts, publishes, answers.
//! Topics are announced to the name servers before their creator is answered, but only for a bounded
//! time and without holding up the next turn.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use ringmq_protocol::{
    codes::{request, response},
    command::{Command, FLAG_ONEWAY},
    encode,
    frame::{self, Encoding, FRAME_LEN_MAX},
    headers::ConsumerGroupRequest,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};
use tracing::{error, info, warn};

use super::{
    BrokerControl, CreateTopicError, Facts, GroupConfig, Published, ToControl, ToThread,
    TopicConfig,
    answer::Answer,
    broker::{Broker, Now, Outcome},
    registration::Registrar,
    requests::{self, WithOffsets},
    snapshots::{Snapshots, State},
};
use crate::{
    clock,
    context::{ConnId, RequestContext},
};

/// Messages in one turn at most.
const TURN_MESSAGES_MAX: usize = 4096;
/// How long facts may take to become durable. After that the turn is undone; facts that became
/// durable later only reappear at the next start.
const FACTS_TIMEOUT: Duration = Duration::from_secs(5);
/// How often silent members and old locks are looked for. Source: 10 s scan of upstream.
const SCAN_PERIOD: Duration = Duration::from_secs(10);
/// How often the files for people follow. Source: `flushConsumerOffsetInterval`.
const SNAPSHOT_PERIOD: Duration = Duration::from_secs(5);
/// The shortest time between two rounds of notices. Without it a group of thousands that starts at
/// once is told with every turn, and the number of notices grows with the square of its members.
const NOTICE_SPACING: Duration = Duration::from_millis(20);
/// Answers that wait for name servers or data threads at most. Beyond it, creators of topics no
/// longer wait for the name servers.
const WAITING_MAX: usize = 10_000;

/// One broker's control thread.
pub(super) struct Service {
    broker: Broker,
    facts: Arc<dyn Facts>,
    published: Arc<Published>,
    requests: mpsc::Receiver<ToControl>,
    threads: Threads,
    registrar: Registrar,
    snapshots: Snapshots,
    /// Answers that wait for name servers or data threads.
    waiting: JoinSet<()>,
    epoch_ms: fn() -> i64,
    /// When members may be told of changes again.
    next_notices: Instant,
    /// Number of the next notice; 0 is taken for absent by some clients.
    opaque: i32,
}

/// What a turn owes to those who asked.
#[derive(Default)]
struct Turn {
    answers: Vec<Owed>,
    created: Vec<Created>,
    ensured: Vec<Ensured>,
}

/// One group that a data thread asked for.
struct Ensured {
    group: Box<str>,
    reply: oneshot::Sender<Option<Arc<GroupConfig>>>,
}

/// One answer to a request.
struct Owed {
    conn: ConnId,
    encoding: Encoding,
    opaque: i32,
    answer: Answer,
    rests_on: requests::RestsOn,
}

/// One topic that a data thread asked for.
struct Created {
    topic: Box<str>,
    result: Result<Arc<TopicConfig>, CreateTopicError>,
    reply: oneshot::Sender<Result<Arc<TopicConfig>, CreateTopicError>>,
}

impl Service {
    /// Takes over the parts of a broker whose state has been restored.
    pub(super) fn new(
        broker: Broker,
        parts: BrokerControl,
        namesrv_addrs: Vec<String>,
        epoch_ms: fn() -> i64,
    ) -> Self {
        let config = Arc::clone(&broker.config);
        let topics = broker.topics.all().clone();
        let registrar = Registrar::new(&config, namesrv_addrs, topics, broker.topics.version());
        Self {
            broker,
            facts: parts.facts,
            published: parts.published,
            requests: parts.requests,
            threads: Threads(parts.threads),
            registrar,
            snapshots: Snapshots::new(config.snapshot_dir.clone()),
            waiting: JoinSet::new(),
            epoch_ms,
            next_notices: Instant::now(),
            opaque: 0,
        }
    }

    /// Resolves once every name server has been tried once.
    pub(super) fn registered(&self) -> impl Future<Output = ()> + use<> {
        self.registrar.started()
    }

    /// Runs until `stop` says so, then says good-bye to the name servers.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut batch = Vec::new();
        let mut scan = interval(SCAN_PERIOD);
        let mut snapshot = interval(SNAPSHOT_PERIOD);
        for ticks in [&mut scan, &mut snapshot] {
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                count = self.requests.recv_many(&mut batch, TURN_MESSAGES_MAX) => {
                    if count == 0 {
                        break;
                    }
                    self.turn(batch.drain(..)).await;
                }
                () = sleep_until(self.next_notices), if self.broker.has_notices() => {
                    self.notify_members();
                }
                _ = scan.tick() => self.scan().await,
                _ = snapshot.tick() => {
                    let facts = Arc::clone(&self.facts);
                    let state = State::of(&self.broker);
                    self.snapshots.start(state, || facts.consumer_offsets()).await;
                }
                Some(_) = self.waiting.join_next() => {}
            }
        }
        self.registrar.leave().await;
        let facts = self.facts;
        let state = State::of(&self.broker);
        self.snapshots.finish_with(state, || facts.consumer_offsets()).await;
    }

    fn now(&self) -> Now {
        Now { instant: clock::instant(), epoch_ms: (self.epoch_ms)() }
    }

    async fn turn(&mut self, messages: impl Iterator<Item = ToControl>) {
        let now = self.now();
        let mut turn = Turn::default();
        for message in messages {
            self.take(message, now, &mut turn);
            // Whoever creates the topic again comes after its end.
            if self.broker.topics.has_deleted() {
                self.end_turn(std::mem::take(&mut turn)).await;
            }
        }
        self.end_turn(turn).await;
    }

    async fn end_turn(&mut self, turn: Turn) {
        let deletes = self.broker.topics.has_deleted();
        let stored = match self.delete_topics().await {
            Ok(()) => self.store().await,
            Err(error) => {
                // They are undone with the turn.
                drop(self.broker.take_facts());
                Err(error)
            }
        };
        let outcome = self.broker.decide(stored.is_ok());
        if deletes && stored.is_err() {
            self.publish_topics();
        }
        let known = self.publish(outcome);
        self.answer(turn, stored, known).await;
    }

    fn take(&mut self, message: ToControl, now: Now, turn: &mut Turn) {
        match message {
            ToControl::Request { ctx, frame } => self.request(&ctx, &frame, now, turn),
            ToControl::Closed { conn } => self.broker.members.closed(conn),
            ToControl::CreateTopic { topic, how, reply } => {
                let result = self.broker.topics.create(&topic, &how, now.epoch_ms);
                turn.created.push(Created { topic, result, reply });
            }
            ToControl::EnsureGroup { group, reply } => {
                self.broker.groups.find_or_create(&group, now.epoch_ms);
                turn.ensured.push(Ensured { group, reply });
            }
        }
    }

    fn request(&mut self, ctx: &RequestContext, bytes: &Bytes, now: Now, turn: &mut Turn) {
        // The data thread has parsed the frame before it handed it over; what does not parse here
        // is closed there.
        let Ok(Some(frame)) = frame::decode(bytes, FRAME_LEN_MAX) else { return };
        let Ok(command) = Command::parse(frame.encoding, frame.header) else { return };
        if command.is_response() {
            return;
        }
        let mut owed = Owed {
            conn: ctx.conn,
            encoding: frame.encoding,
            opaque: command.opaque,
            answer: Answer::ok(),
            rests_on: requests::rests_on(command.code),
        };
        owed.answer = match WithOffsets::of(&self.broker, &command) {
            Some(Ok(asked)) if !command.is_oneway() => return self.ask_offsets(asked, owed, turn),
            Some(asked) => asked.map_or_else(|refused| refused, |_| Answer::ok()),
            None => requests::handle(&mut self.broker, ctx, &command, frame.body, now),
        };
        if !command.is_oneway() {
            turn.answers.push(owed);
        }
    }

    /// Answers once the data threads have said their offsets, without holding up the turn.
    fn ask_offsets(&mut self, asked: WithOffsets, mut owed: Owed, turn: &mut Turn) {
        let (facts, threads) = (Arc::clone(&self.facts), self.threads.clone());
        if self.waiting.len() >= WAITING_MAX {
            owed.answer = Answer::error(response::SYSTEM_BUSY, "[OVERLOAD]too many requests wait");
            return turn.answers.push(owed);
        }
        self.waiting.spawn_local(async move {
            owed.answer = asked.answer(facts.consumer_offsets().await);
            threads.send(owed.into_message()).await;
        });
    }

    /// Has the store forget the topics that were taken out. Their configuration goes last: if the
    /// process ends in between, they are there, and empty.
    async fn delete_topics(&mut self) -> Result<(), String> {
        let deleted = self.broker.topics.take_deleted();
        if deleted.is_empty() {
            return Ok(());
        }
        // From here on no send and no pull finds them, so that nothing is stored behind their end.
        self.publish_topics();
        for topic in deleted {
            let done = timeout(FACTS_TIMEOUT, self.facts.delete_topic(Arc::clone(&topic))).await;
            let done = done.unwrap_or_else(|_| Err("the store did not answer in time".to_owned()));
            if let Err(error) = done {
                error!(%topic, %error, "the topic could not be deleted");
                return Err(error);
            }
            info!(%topic, "deleted");
        }
        Ok(())
    }

    fn publish_topics(&self) {
        self.published.catalog.store(Arc::new(self.broker.catalog()));
    }

    async fn store(&mut self) -> Result<(), String> {
        let facts = self.broker.take_facts();
        if facts.is_empty() {
            return Ok(());
        }
        let put = timeout(FACTS_TIMEOUT, self.facts.put(facts)).await;
        let stored = put.unwrap_or_else(|_| Err("the store did not answer in time".to_owned()));
        if let Err(error) = &stored {
            error!(%error, "topics or groups could not be stored, their change is undone");
        }
        stored
    }

    /// Publishes what changed and tells it. The future is ready when the name servers know of
    /// topics that changed.
    fn publish(&mut self, outcome: Outcome) -> Option<impl Future<Output = ()> + use<>> {
        if let Some(catalog) = outcome.catalog {
            self.published.catalog.store(Arc::new(catalog));
        }
        if let Some(groups) = outcome.groups {
            self.published.groups.store(Arc::new(groups));
        }
        let updated = outcome.topics_updated?;
        let topics = &self.broker.topics;
        Some(self.registrar.announce(updated, topics.all().clone(), topics.version()))
    }

    fn notify_members(&mut self) {
        for (group, conns) in self.broker.take_notices() {
            self.notify(&group, conns);
        }
        self.next_notices = Instant::now() + NOTICE_SPACING;
    }

    fn notify(&mut self, group: &str, conns: Vec<ConnId>) {
        self.opaque = self.opaque.checked_add(1).unwrap_or(1);
        let header = ConsumerGroupRequest { consumer_group: group.into() };
        let code = request::NOTIFY_CONSUMER_IDS_CHANGED;
        let mut bytes = Vec::new();
        let ext = |out: &mut encode::FrameWriter<'_, '_>| header.encode(out);
        // JSON, since every client reads that, whatever it writes.
        let fits =
            encode::request(&mut bytes, Encoding::Json, self.opaque, code, FLAG_ONEWAY, ext, &[]);
        if fits.is_ok() {
            self.threads.notify(conns, &Bytes::from(bytes));
        }
    }

    async fn answer(
        &mut self,
        turn: Turn,
        stored: Result<(), String>,
        known: Option<impl Future<Output = ()> + 'static>,
    ) {
        for Ensured { group, reply } in turn.ensured {
            // Whoever asked may be gone; then nobody misses the answer.
            let _ = reply.send(self.broker.groups.all().get(&*group).cloned());
        }
        let mut created = turn.created;
        for created in &mut created {
            created.settle(&self.broker, &stored);
        }
        let (mut at_once, mut later) = (Vec::new(), Vec::new());
        for mut owed in turn.answers {
            if let (Err(error), true) = (&stored, owed.rests_on != requests::RestsOn::Nothing) {
                owed.answer = Answer::failed(format!("not stored: {error}"));
            }
            let waits = owed.rests_on == requests::RestsOn::NameServers;
            if waits { later.push(owed) } else { at_once.push(owed) }
        }
        for owed in at_once {
            self.threads.send(owed.into_message()).await;
        }
        self.answer_later(later, created, known).await;
    }

    /// Answers those whose topics the name servers should know first.
    async fn answer_later(
        &mut self,
        answers: Vec<Owed>,
        created: Vec<Created>,
        known: Option<impl Future<Output = ()> + 'static>,
    ) {
        let threads = self.threads.clone();
        let answer = async move {
            for created in created {
                let _ = created.reply.send(created.result);
            }
            for owed in answers {
                threads.send(owed.into_message()).await;
            }
        };
        match known {
            Some(known) if self.waiting.len() < WAITING_MAX => {
                self.waiting.spawn_local(async move {
                    known.await;
                    answer.await;
                });
            }
            _ => answer.await,
        }
    }

    async fn scan(&mut self) {
        let now = self.now();
        self.broker.locks.expire(now.instant);
        for conn in self.broker.members.expire(now.instant) {
            warn!(thread = conn.thread, slot = conn.slot, "no heartbeat for too long, closing");
            self.threads.send(ToThread::Close { conn }).await;
        }
        let outcome = self.broker.decide(true);
        drop(self.publish(outcome));
    }
}

impl Created {
    /// The topic as it is after the turn, if its facts were stored.
    fn settle(&mut self, broker: &Broker, stored: &Result<(), String>) {
        if self.result.is_ok() {
            let topic = broker.topics.get(&self.topic).cloned();
            self.result = topic
                .ok_or_else(|| CreateTopicError::Store(stored.clone().err().unwrap_or_default()));
        }
    }
}

impl Owed {
    fn into_message(self) -> ToThread {
        let mut bytes = Vec::new();
        self.answer.append_to(&mut bytes, self.encoding, self.opaque);
        ToThread::Send { conn: self.conn, bytes: bytes.into() }
    }
}

/// The channels to the data threads.
#[derive(Clone)]
struct Threads(Vec<mpsc::Sender<ToThread>>);

impl Threads {
    /// Waits while the thread's channel is full. A thread that has ended gets nothing.
    async fn send(&self, message: ToThread) {
        let (ToThread::Send { conn, .. } | ToThread::Close { conn }) = &message else { return };
        if let Some(thread) = self.0.get(usize::from(conn.thread)) {
            let _ = thread.send(message).await;
        }
    }

    /// One message per thread. A full channel loses it: members look again every 20 s anyway.
    fn notify(&self, conns: Vec<ConnId>, bytes: &Bytes) {
        for (index, thread) in self.0.iter().enumerate() {
            let of_thread = |conn: &ConnId| usize::from(conn.thread) == index;
            let conns: Vec<_> = conns.iter().copied().filter(of_thread).collect();
            if !conns.is_empty() {
                let _ = thread.try_send(ToThread::Notify { conns, bytes: bytes.clone() });
            }
        }
    }
}

#[cfg(test)]
mod tests;
