//! Automatic batching: single sends that travel together.
//!
//! Each queue has a lane: parcels that wait, at most one on its way. A message joins the last parcel
//! of its queue's lane as long as there is room, so that a parcel grows while the one before it is
//! on its way, and messages of one queue are stored in the order in which they were sent. A message
//! that may go anywhere joins the queue that the last such message of its topic went to, until that
//! parcel leaves.
//!
//! A parcel leaves when the lane is free and the linger is over, or the parcel is full. A lane's task
//! lives as long as it has parcels. A parcel with one message is sent as a single message.
//!
//! Bounds: all that waits has a place in the producer's gate.

use std::{
    collections::{HashMap, VecDeque, hash_map},
    sync::{Arc, Mutex},
    time::Duration,
};

use foldhash::fast::FixedState;
use ringmq_protocol::batch;
use tokio::{
    sync::{Notify, oneshot},
    task::yield_now,
    time::{Instant, sleep_until},
};

use super::{
    Inner, SendReceipt,
    deliver::{Target, no_route},
    gate::Permit,
    outbound::Outbound,
};
use crate::{Error, MessageQueue, QueueOffset, lock, route::Route};

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
}

impl Default for Batching {
    fn default() -> Self {
        Self { linger: Duration::ZERO, len_max: 64 * 1024, count_max: 1024 }
    }
}

impl Batching {
    /// Messages wait only for the batch before them; a batch has at most 64 KiB and 1,024 messages.
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

    /// Longest batch, in bytes; 64 KiB unless set. A message that is longer is sent alone.
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
}

/// What a producer batches.
#[derive(Debug)]
pub(super) struct Batcher {
    batching: Batching,
    lanes: Mutex<Lanes>,
}

#[derive(Debug, Default)]
struct Lanes {
    by_queue: HashMap<MessageQueue, Lane, FixedState>,
    /// Where messages of a topic go that may go anywhere.
    current: HashMap<Arc<str>, Current, FixedState>,
}

#[derive(Debug)]
struct Current {
    route: Arc<Route>,
    queue: MessageQueue,
}

/// The parcels of one queue that have not left. Its task runs as long as the lane exists.
#[derive(Debug, Default)]
struct Lane {
    parcels: VecDeque<Parcel>,
    /// The first parcel is full.
    is_full: Arc<Notify>,
}

/// Messages that travel together.
#[derive(Debug)]
struct Parcel {
    /// The first message, as it is sent if it stays alone.
    first: Outbound,
    /// All messages as a batch; empty while there is one only.
    body: Vec<u8>,
    members: Vec<Member>,
    opened: Instant,
    /// That of the first message, so that everybody is answered in time.
    deadline: Instant,
    /// Whether the messages may go to another queue when theirs fails.
    is_free: bool,
    is_full: bool,
}

#[derive(Debug)]
struct Member {
    message_id: String,
    sender: oneshot::Sender<Result<SendReceipt, Error>>,
    _permit: Permit,
}

/// What a lane's task does next.
enum Next {
    Ship(Box<Parcel>),
    Wait(Instant, Arc<Notify>),
    End,
}

impl Parcel {
    fn new(first: Outbound, member: Member, deadline: Instant, is_free: bool) -> Self {
        let is_full = first.is_compressed();
        let members = vec![member];
        let opened = Instant::now();
        Self { first, body: Vec::new(), members, opened, deadline, is_free, is_full }
    }

    /// Whether a message can be added. One that cannot starts another parcel behind this one, which
    /// gets no more messages then: only the last parcel of a lane is asked.
    fn fits(&self, outbound: &Outbound, is_free: bool, batching: &Batching) -> bool {
        !self.is_full
            && !outbound.is_compressed()
            && self.is_free == is_free
            && self.first.is_hasty == outbound.is_hasty
            && self.len() + item_len(outbound) <= batching.len_max
    }

    /// Adds a message that fits.
    fn add(&mut self, outbound: &Outbound, member: Member, batching: &Batching) {
        if self.body.is_empty() {
            self.body.reserve(batching.len_max.min(8 * 1024));
            append(&mut self.body, &self.first);
        }
        append(&mut self.body, outbound);
        self.members.push(member);
        self.is_full |= batching.count_max <= self.members.len();
    }

    fn len(&self) -> usize {
        self.body.len().max(item_len(&self.first))
    }
}

fn item_len(outbound: &Outbound) -> usize {
    batch::ITEM_OVERHEAD + outbound.len()
}

fn append(body: &mut Vec<u8>, outbound: &Outbound) {
    // The length of each part was checked when the message was made ready.
    let appended = batch::append(body, &outbound.item());
    debug_assert!(appended.is_ok(), "a message that can be sent can be part of a batch");
}

impl Batcher {
    pub(super) fn new(batching: Batching) -> Self {
        Self { batching, lanes: Mutex::default() }
    }

    /// Puts a message into a lane. Returns the queue if the lane is new and needs its task.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoute`] if the topic has no queue.
    fn put(
        &self,
        route: &Arc<Route>,
        fixed: Option<MessageQueue>,
        pick: impl Fn() -> Option<MessageQueue>,
        outbound: Outbound,
        member: Member,
        deadline: Instant,
    ) -> Result<Option<MessageQueue>, Error> {
        let is_free = fixed.is_none();
        let mut lanes = lock(&self.lanes);
        let queue = match fixed {
            Some(queue) => queue,
            None => match lanes.joinable(route, &outbound, &self.batching) {
                Some(queue) => queue,
                None => {
                    let queue = pick().ok_or_else(|| no_route(&outbound))?;
                    let current = Current { route: Arc::clone(route), queue: queue.clone() };
                    lanes.current.insert(Arc::clone(&outbound.topic), current);
                    queue
                }
            },
        };
        let (lane, is_new) = match lanes.by_queue.entry(queue.clone()) {
            hash_map::Entry::Occupied(lane) => (lane.into_mut(), false),
            hash_map::Entry::Vacant(place) => (place.insert(Lane::default()), true),
        };
        lane.push(outbound, member, deadline, is_free, &self.batching);
        Ok(is_new.then_some(queue))
    }

    /// What the task of a lane does next; the lane is gone when it ends.
    fn next(&self, queue: &MessageQueue, now: Instant) -> Next {
        let mut lanes = lock(&self.lanes);
        let hash_map::Entry::Occupied(mut lane) = lanes.by_queue.entry(queue.clone()) else {
            return Next::End;
        };
        let parcels = &mut lane.get_mut().parcels;
        let Some(first) = parcels.front() else {
            lane.remove();
            return Next::End;
        };
        let until = first.opened + self.batching.linger;
        if now < until && !first.is_full && parcels.len() == 1 {
            return Next::Wait(until, Arc::clone(&lane.get().is_full));
        }
        parcels.pop_front().map_or(Next::End, |parcel| Next::Ship(Box::new(parcel)))
    }
}

impl Lanes {
    /// The queue whose last parcel a message can join that may go anywhere.
    fn joinable(
        &mut self,
        route: &Arc<Route>,
        outbound: &Outbound,
        batching: &Batching,
    ) -> Option<MessageQueue> {
        let current = self.current.get(&outbound.topic)?;
        if !Arc::ptr_eq(&current.route, route) {
            return None;
        }
        let parcel = self.by_queue.get_mut(&current.queue)?.parcels.back_mut()?;
        parcel.fits(outbound, true, batching).then(|| current.queue.clone())
    }
}

impl Lane {
    fn push(
        &mut self,
        outbound: Outbound,
        member: Member,
        deadline: Instant,
        is_free: bool,
        batching: &Batching,
    ) {
        let last = self.parcels.back_mut();
        match last.filter(|parcel| parcel.fits(&outbound, is_free, batching)) {
            Some(parcel) => parcel.add(&outbound, member, batching),
            None => self.parcels.push_back(Parcel::new(outbound, member, deadline, is_free)),
        }
        if self.parcels.len() > 1 || self.parcels.front().is_some_and(|parcel| parcel.is_full) {
            self.is_full.notify_one();
        }
    }
}

impl Inner {
    /// Sends a message together with others, if the producer does that and the message can be.
    pub(super) async fn pass(
        self: &Arc<Self>,
        outbound: Outbound,
        target: Target<'_>,
        permit: Permit,
        deadline: Instant,
    ) -> Result<SendReceipt, Error> {
        let Some(batcher) = self.batcher.as_ref().filter(|_| outbound.can_join) else {
            let receipt = self.deliver(&outbound, target, deadline).await;
            drop(permit);
            return receipt;
        };
        let route = self.client.shared.publish_route(&outbound.topic, deadline).await?;
        let fixed = match target {
            Target::Any => None,
            target => {
                let chosen = self.choose(&route, target, None)?;
                Some(chosen.ok_or_else(|| no_route(&outbound))?)
            }
        };
        let (sender, receiver) = oneshot::channel();
        let member = Member { message_id: outbound.message_id.clone(), sender, _permit: permit };
        let pick = || self.choose(&route, Target::Any, None).ok().flatten();
        let new = batcher.put(&route, fixed, pick, outbound, member, deadline)?;
        if let Some(queue) = new {
            tokio::spawn(run(Arc::clone(self), queue));
        }
        receiver.await.unwrap_or(Err(Error::Closed))
    }

    async fn ship(&self, parcel: Parcel, queue: &MessageQueue) {
        let Parcel { first, body, members, deadline, is_free, .. } = parcel;
        let target = match is_free {
            true => Target::First(queue),
            false => Target::Exactly(queue),
        };
        let outbound = match members.len() {
            1 => first,
            _ => first.into_batch(body),
        };
        let result = self.deliver(&outbound, target, deadline).await;
        match result {
            Ok(receipt) => hand_out(receipt, members),
            Err(error) => {
                for member in members {
                    // Who sent it may not wait any more.
                    drop(member.sender.send(Err(error.again())));
                }
            }
        }
    }
}

/// Gives each message of a batch its part of the receipt.
fn hand_out(receipt: SendReceipt, members: Vec<Member>) {
    let SendReceipt { status, offset_message_id, queue, queue_offset, recall_handle, .. } = receipt;
    let mut ids = offset_message_id.split(',');
    for (offset, member) in (queue_offset.get()..).zip(members) {
        let receipt = SendReceipt {
            status,
            message_id: member.message_id,
            offset_message_id: ids.next().unwrap_or_default().into(),
            queue: queue.clone(),
            queue_offset: QueueOffset::new(offset),
            recall_handle: recall_handle.clone(),
        };
        // Who sent it may not wait any more.
        drop(member.sender.send(Ok(receipt)));
    }
}

/// Sends the parcels of a lane, one after the other, until there are none.
async fn run(inner: Arc<Inner>, queue: MessageQueue) {
    let Some(batcher) = &inner.batcher else { return };
    loop {
        // Others who are ready to run add their messages first.
        yield_now().await;
        match batcher.next(&queue, Instant::now()) {
            Next::Ship(parcel) => inner.ship(*parcel, &queue).await,
            Next::Wait(until, is_full) => {
                tokio::select! {
                    () = sleep_until(until) => {}
                    () = is_full.notified() => {}
                }
            }
            Next::End => return,
        }
    }
}
