//! Automatic batching: single sends that travel together.
//!
//! Messages that may go anywhere share the lane of their topic; those that belong to a queue have
//! the lane of that queue. A lane is a row of parcels. A message joins the last parcel as long as
//! there is room, so that parcels grow while those before them are on their way. A parcel leaves
//! when its linger is over or it is full, and not too many are on their way: of a queue's lane one, so
//! that its messages are stored in the order in which they were sent; of a topic's lane a few, each
//! to a queue that no other one of the lane is at. A parcel with one message is sent as a single
//! message.
//!
//! Shippers are tasks that look for parcels after everybody who is ready to send has had a turn. With
//! hundreds of senders that is late: the broker would idle while they make their messages, and they
//! while it stores them. So whoever fills a parcel puts it on its way at once, and so does, where
//! nothing lingers, who makes it worth it: the more are on their way, the longer it has to be. A
//! message of a producer that has nothing else in flight leaves at once, too.
//!
//! What it costs to send a message decides how fast this is, so that a message is encoded once, to
//! where it leaves from, and a parcel has one permit, one outcome and one buffer for all of its
//! messages.
//!
//! Bounds: all that waits has a place in the producer's gate; [`SPARES_MAX`] buffers are kept.
//!
//! Elsewhere: how senders learn what became of their messages is in `outcome`.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use foldhash::fast::FixedState;
use ringmq_protocol::batch;
use tokio::{
    sync::Notify,
    task::yield_now,
    time::{Instant, sleep_until},
};

use super::{
    Inner, SendReceipt,
    deliver::{Target, no_route},
    gate::Permit,
    outbound::{Form, Outbound},
    outcome::{Answering, Ticket},
};
use crate::{Error, Invalid, Message, MessageQueue, lock, route::Route, unique::UniqueIds};

/// Buffers of parcels that have left which are kept for those to come.
const SPARES_MAX: usize = 16;

/// Room that a parcel's second message makes. Unit: bytes.
const ROOM_MIN: usize = 8 * 1024;

/// How long a parcel is that is worth a way of its own although others are about to add to it, when
/// none is on its way; twice as long for each that is. Unit: bytes.
const EARLY_LEN: usize = 32 * 1024;

/// How single sends are put together into batches.
///
/// ```
/// use std::time::Duration;
/// use ringmq_client::Batching;
///
/// let batching = Batching::new().linger(Duration::from_millis(1)).len_max(128 * 1024);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Batching {
    linger: Duration,
    len_max: usize,
    count_max: usize,
    in_flight_max: usize,
}

impl Default for Batching {
    fn default() -> Self {
        Self { linger: Duration::ZERO, len_max: 256 * 1024, count_max: 1024, in_flight_max: 4 }
    }
}

impl Batching {
    /// Messages wait only for batches before them; a batch has at most 256 KiB and 1,024 messages.
    ///
    /// ```
    /// let batching = ringmq_client::Batching::new();
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the first message of a batch waits for others; not at all unless set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let batching = ringmq_client::Batching::new().linger(Duration::from_millis(5));
    /// ```
    #[must_use]
    pub const fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Longest batch, in bytes; 256 KiB unless set. A message that is longer is sent alone.
    ///
    /// ```
    /// let batching = ringmq_client::Batching::new().len_max(32 * 1024);
    /// ```
    #[must_use]
    pub const fn len_max(mut self, len: usize) -> Self {
        self.len_max = len;
        self
    }

    /// Most messages of a batch, at least 1; 1,024 unless set.
    ///
    /// ```
    /// let batching = ringmq_client::Batching::new().count_max(32);
    /// ```
    #[must_use]
    pub const fn count_max(mut self, count: usize) -> Self {
        self.count_max = count;
        self
    }

    /// Most batches of one topic that are on their way at one time, if their messages may go to any
    /// queue; 4 unless set. Each goes to a queue of its own, so a topic with fewer queues has fewer.
    /// Batches for one queue always follow each other.
    ///
    /// ```
    /// let batching = ringmq_client::Batching::new().in_flight_max(8);
    /// ```
    #[must_use]
    pub const fn in_flight_max(mut self, count: usize) -> Self {
        self.in_flight_max = count;
        self
    }
}

/// What a producer batches.
#[derive(Debug)]
pub(super) struct Batcher {
    batching: Batching,
    lanes: Mutex<Lanes>,
}

#[derive(Debug, Default)]
struct Lanes {
    all: HashMap<Key, Lane, FixedState>,
    /// Empty buffers with room.
    spares: Vec<Vec<u8>>,
    /// The properties of one message.
    properties: Vec<u8>,
    /// Messages of the parcel that arrived last.
    burst: usize,
}

/// Which lane a message takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// To any queue of this topic, which has its namespace.
    Topic(Arc<str>),
    Queue(MessageQueue),
}

/// Parcels that have not left, in the order in which they will. A lane exists as long as it has
/// shippers.
#[derive(Debug, Default)]
struct Lane {
    parcels: VecDeque<Parcel>,
    /// Tasks, each with a parcel that is on its way or about to look for one.
    shippers: usize,
    /// Parcels that are on their way.
    in_flight: usize,
    /// The queues that a topic's shippers are at.
    taken: Vec<MessageQueue>,
    /// The first parcel has left without a shipper who waited for its time.
    is_due: Arc<Notify>,
}

/// Messages that travel together.
#[derive(Debug)]
struct Parcel {
    /// The first message, as it is sent if it stays alone.
    first: Outbound,
    /// All messages as a batch; empty while there is one only.
    body: Vec<u8>,
    answering: Answering,
    permit: Permit,
    opened: Instant,
    /// That of the first message, so that everybody is answered in time.
    deadline: Instant,
    is_full: bool,
}

/// A message on its way into a parcel.
pub(super) struct Load<'a> {
    pub(super) message: &'a Message,
    /// The message, made ready by itself. Without it, the message is encoded into its parcel.
    pub(super) ready: Option<Outbound>,
    pub(super) permit: Permit,
    pub(super) deadline: Instant,
}

/// How messages are made ready, and where their ids come from.
#[derive(Clone, Copy)]
struct Press<'a> {
    form: &'a Form,
    ids: &'a UniqueIds,
}

/// What a lane needs after a message was put into it.
enum Need {
    Nothing,
    /// One more shipper, who counts as there already.
    Shipper,
    /// One who takes this parcel on its way now; both count already.
    Way(Box<Parcel>),
}

/// What a shipper does next.
enum Next {
    Ship(Box<Parcel>),
    Wait(Instant, Arc<Notify>),
    End,
}

impl Lane {
    /// Whether the first parcel gets no more messages, or should leave without waiting for any.
    fn is_first_due(&self, batching: &Batching) -> bool {
        let Some(first) = self.parcels.front() else { return false };
        let early_len = EARLY_LEN.saturating_mul(1 << self.in_flight.min(16));
        let is_worth_it = batching.linger.is_zero() && early_len <= first.len();
        first.is_full || 1 < self.parcels.len() || is_worth_it
    }

    /// Takes the first parcel on its way.
    fn take(&mut self) -> Option<Box<Parcel>> {
        let first = self.parcels.pop_front()?;
        self.in_flight += 1;
        Some(Box::new(first))
    }
}

impl Parcel {
    fn new(first: Outbound, permit: Permit, deadline: Instant) -> (Self, Ticket) {
        let (mut answering, opened) = (Answering::default(), Instant::now());
        let ticket = answering.ticket(first.message_id.clone());
        let is_full = first.is_compressed();
        (Self { first, body: Vec::new(), answering, permit, opened, deadline, is_full }, ticket)
    }

    /// Whether a message can be added. One that cannot starts another parcel behind this one, which
    /// gets no more messages then: only the last parcel of a lane is asked.
    fn fits(&self, load: &Load<'_>, batching: &Batching) -> bool {
        !self.is_full
            && !load.ready.as_ref().is_some_and(Outbound::is_compressed)
            && self.first.is_hasty == load.message.is_hasty()
            && self.len() + load.message.len_estimate() <= batching.len_max
    }

    /// Adds a message that fits. `properties` is a buffer to work in.
    ///
    /// # Errors
    ///
    /// [`Invalid`]; the parcel is as it was.
    fn add(
        &mut self,
        load: Load<'_>,
        press: Press<'_>,
        properties: &mut Vec<u8>,
    ) -> Result<Ticket, Invalid> {
        let message_id = match load.ready {
            Some(outbound) => {
                append(&mut self.body, &outbound.item());
                outbound.message_id
            }
            None => {
                let (message, id) = (load.message, press.ids.next(self.first.born_ms));
                properties.clear();
                message.write_properties(properties, &id, press.form.namespace.name())?;
                let (flag, body) = (message.flag_bits(), message.body());
                append(&mut self.body, &batch::Item { flag, body, properties });
                id.to_string()
            }
        };
        self.permit.join(load.permit);
        Ok(self.answering.ticket(message_id))
    }

    /// Makes the parcel a batch of one message, for others to come.
    fn unfold(&mut self, spares: &mut Vec<Vec<u8>>) {
        if self.body.is_empty() {
            self.body = spares.pop().unwrap_or_else(|| Vec::with_capacity(ROOM_MIN));
            append(&mut self.body, &self.first.item());
        }
    }

    fn len(&self) -> usize {
        self.body.len().max(batch::ITEM_OVERHEAD + self.first.len())
    }
}

fn append(body: &mut Vec<u8>, item: &batch::Item<'_>) {
    // The length of each part was checked when the message was made ready.
    let appended = batch::append(body, item);
    debug_assert!(appended.is_ok(), "a message that can be sent can be part of a batch");
}

impl Batcher {
    pub(super) fn new(batching: Batching) -> Self {
        Self { batching, lanes: Mutex::default() }
    }

    /// Puts a message into a lane, and says what the lane needs then.
    ///
    /// # Errors
    ///
    /// [`Invalid`], and the message is in no lane.
    fn put(&self, key: &Key, load: Load<'_>, inner: &Inner) -> Result<(Ticket, Need), Invalid> {
        let press = Press { form: &inner.form, ids: &inner.client.shared.unique_ids };
        let mut lanes = lock(&self.lanes);
        let Lanes { all, spares, properties, burst } = &mut *lanes;
        if let Some(lane) = all.get_mut(key)
            && let Some(last) = lane.parcels.back_mut()
            && last.fits(&load, &self.batching)
        {
            last.unfold(spares);
            let ticket = last.add(load, press, properties)?;
            last.is_full |= self.batching.count_max <= last.answering.count();
            return Ok((ticket, self.need(lane, key, inner, false)));
        }
        let Load { message, ready, permit, deadline } = load;
        let first = match ready {
            Some(ready) => ready,
            None => Outbound::single(message, press.ids, press.form)?,
        };
        let lane = match all.get_mut(key) {
            Some(lane) => lane,
            None => all.entry(key.clone()).or_default(),
        };
        let (parcel, ticket) = Parcel::new(first, permit, deadline);
        lane.parcels.push_back(parcel);
        // After many answers the first sender is not alone: the others are about to send, too.
        let is_alone = self.batching.linger.is_zero() && *burst <= 1 && inner.gate.in_flight() <= 1;
        Ok((ticket, self.need(lane, key, inner, is_alone)))
    }

    fn need(&self, lane: &mut Lane, key: &Key, inner: &Inner, is_alone: bool) -> Need {
        let is_due = is_alone || lane.is_first_due(&self.batching);
        let is_looked_for = lane.parcels.len() <= lane.shippers - lane.in_flight;
        // Most messages join a parcel that somebody looks for already, and change nothing.
        if is_looked_for && !is_due || self.batching.in_flight_max.max(1) <= lane.in_flight {
            return Need::Nothing;
        }
        let in_flight_max = self.in_flight_max(key, inner);
        if is_due
            && lane.in_flight < in_flight_max
            && let Some(parcel) = lane.take()
        {
            lane.shippers += 1;
            // Whoever lingers waits for one that has not left.
            lane.is_due.notify_one();
            return Need::Way(parcel);
        }
        if is_looked_for || in_flight_max <= lane.shippers {
            return Need::Nothing;
        }
        lane.shippers += 1;
        Need::Shipper
    }

    /// Most parcels of a lane that are on their way at one time.
    fn in_flight_max(&self, key: &Key, inner: &Inner) -> usize {
        match key {
            Key::Queue(_) => 1,
            Key::Topic(topic) => {
                // A route that is not known yet is found out by the first shipper.
                let route = inner.client.shared.routes.known(topic);
                let queues = route.map_or(0, |route| route.publish().len());
                queues.min(self.batching.in_flight_max).max(1)
            }
        }
    }

    /// What a shipper of a lane does next; it does not count any more when it ends.
    fn next(&self, key: &Key, now: Instant, inner: &Inner) -> Next {
        let mut lanes = lock(&self.lanes);
        let Some(lane) = lanes.all.get_mut(key) else { return Next::End };
        let first = lane.parcels.front();
        // Those who have parcels on their way look again when these have arrived.
        let is_needed = lane.in_flight == 0 || lane.in_flight < self.in_flight_max(key, inner);
        let Some(first) = first.filter(|_| is_needed) else {
            lane.shippers -= 1;
            if lane.shippers == 0 {
                lanes.all.remove(key);
            }
            return Next::End;
        };
        let until = first.opened + self.batching.linger;
        if now < until && !lane.is_first_due(&self.batching) {
            return Next::Wait(until, Arc::clone(&lane.is_due));
        }
        lane.take().map_or(Next::End, Next::Ship)
    }

    /// Notes that a parcel of so many messages is not on its way any more; the next one if that is due
    /// already.
    fn arrived(&self, key: &Key, count: usize) -> Option<Box<Parcel>> {
        let mut lanes = lock(&self.lanes);
        lanes.burst = count;
        let lane = lanes.all.get_mut(key)?;
        lane.in_flight -= 1;
        if lane.is_first_due(&self.batching) { lane.take() } else { None }
    }

    /// Takes a queue for a parcel of a topic: one that no other shipper is at, as long as there is
    /// one among so many picks as there are queues.
    fn take_queue(
        &self,
        key: &Key,
        route: &Route,
        pick: impl Fn() -> Option<MessageQueue>,
    ) -> Option<MessageQueue> {
        let mut lanes = lock(&self.lanes);
        let lane = lanes.all.get_mut(key)?;
        let mut queue = pick()?;
        for _ in 1..route.publish().len() {
            if !lane.taken.contains(&queue) {
                break;
            }
            queue = pick()?;
        }
        lane.taken.push(queue.clone());
        Some(queue)
    }

    /// Gives a queue back when the parcel has arrived.
    fn give_back(&self, key: &Key, queue: &MessageQueue) {
        if let Some(lane) = lock(&self.lanes).all.get_mut(key)
            && let Some(at) = lane.taken.iter().position(|taken| taken == queue)
        {
            lane.taken.swap_remove(at);
        }
    }

    /// Keeps the buffer of a batch that nobody needs any more.
    fn keep(&self, body: Bytes) {
        let Ok(mut body) = body.try_into_mut() else { return };
        body.clear();
        let body = Vec::from(body);
        let is_fit = (ROOM_MIN..=2 * self.batching.len_max).contains(&body.capacity());
        let mut lanes = lock(&self.lanes);
        if is_fit && lanes.spares.len() < SPARES_MAX {
            lanes.spares.push(body);
        }
    }
}

impl Inner {
    /// Sends a message together with others.
    pub(super) async fn join(
        self: &Arc<Self>,
        batcher: &Batcher,
        load: Load<'_>,
        target: Target<'_>,
    ) -> Result<SendReceipt, Error> {
        let topic = self.form.topic(load.message);
        let key = match target {
            Target::Any => Key::Topic(topic),
            target => {
                let route = self.client.shared.publish_route(&topic, load.deadline).await?;
                let chosen = self.choose(&route, target, None)?;
                Key::Queue(chosen.ok_or_else(|| no_route(&topic))?)
            }
        };
        let (ticket, need) = batcher.put(&key, load, self)?;
        match need {
            Need::Nothing => {}
            Need::Shipper => drop(tokio::spawn(run(Arc::clone(self), key, None))),
            Need::Way(parcel) => start(run(Arc::clone(self), key, Some(parcel))),
        }
        ticket.await
    }

    /// Takes a parcel on its way; the one that is due next.
    async fn ship(&self, batcher: &Batcher, key: &Key, parcel: Parcel) -> Option<Box<Parcel>> {
        let Parcel { first, body, answering, permit, deadline, .. } = parcel;
        let outbound = match answering.count() {
            1 => first,
            _ => first.into_batch(body),
        };
        let result = self.carry(batcher, key, &outbound, deadline).await;
        let next = batcher.arrived(key, answering.count());
        drop(permit);
        answering.end(result);
        batcher.keep(outbound.body);
        next
    }

    async fn carry(
        &self,
        batcher: &Batcher,
        key: &Key,
        outbound: &Outbound,
        deadline: Instant,
    ) -> Result<SendReceipt, Error> {
        if let Key::Queue(queue) = key {
            return self.deliver(outbound, Target::Exactly(queue), deadline).await;
        }
        let route = self.client.shared.publish_route(&outbound.topic, deadline).await?;
        let pick = || self.choose(&route, Target::Any, None).ok().flatten();
        let queue = batcher.take_queue(key, &route, pick);
        let queue = queue.ok_or_else(|| no_route(&outbound.topic))?;
        let result = self.deliver(outbound, Target::First(&queue), deadline).await;
        batcher.give_back(key, &queue);
        result
    }
}

/// Runs a task as far as it comes now, before those who are ready already.
fn start(task: impl Future<Output = ()> + Send + 'static) {
    let mut task = Box::pin(task);
    // Whom it waits for hears of its waker when it is polled as a task.
    if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        tokio::spawn(task);
    }
}

/// Sends parcels of a lane, one after the other, until there are none.
async fn run(inner: Arc<Inner>, key: Key, mut parcel: Option<Box<Parcel>>) {
    let Some(batcher) = &inner.batcher else { return };
    loop {
        while let Some(due) = parcel.take() {
            parcel = inner.ship(batcher, &key, *due).await;
        }
        // Others who are ready to run add their messages first.
        yield_now().await;
        match batcher.next(&key, Instant::now(), &inner) {
            Next::Ship(next) => parcel = Some(next),
            Next::Wait(until, is_due) => {
                tokio::select! {
                    () = sleep_until(until) => {}
                    () = is_due.notified() => {}
                }
            }
            Next::End => return,
        }
    }
}
