//! Many messages at a time, in no order.
//!
//! Queues with messages stand in a line. A worker takes the first one, takes the next messages of
//! it, and puts it back to the end if it has more: so no queue keeps the others waiting, and nothing
//! is moved but a pointer. Workers are tasks; there are as many as the listener may run at once.
//!
//! Source of the rules: Apache RocketMQ 4.9.8, `ConsumeMessageConcurrentlyService`.

use std::{
    collections::VecDeque,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tracing::Instrument;

use super::listener::{Delivery, Listener, Verdict, guarded};
use crate::{
    Error, QueueOffset, ReceivedMessage,
    consumer::{
        backlog::Backlog,
        held::Held,
        member::{Directly, Member, Sink},
        retry::Again,
    },
    lock,
    trace::Ended,
};

/// Pause before messages that could not be sent back are given to the listener again. Source: as
/// above, `submitConsumeRequestLater`.
const LOCAL_PAUSE: Duration = Duration::from_secs(5);

/// Most messages of one queue that are looked at for being stuck at one time. Source:
/// `ProcessQueue.cleanExpiredMsg`.
const STUCK_MAX: usize = 16;

/// Delay level of stuck messages: 10 s. Source: as above.
const STUCK_LEVEL: i32 = 3;

/// What a concurrent consumer is set up with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) workers: usize,
    pub(super) batch_max: usize,
    pub(super) deliveries_max: i32,
    /// How long a listener may take before its message is given to another member.
    pub(super) consume_time_max: Duration,
}

/// The line of queues with messages.
#[derive(Debug, Default)]
struct Line {
    queues: Mutex<VecDeque<Work>>,
    arrived: Notify,
    is_closed: AtomicBool,
}

#[derive(Debug)]
enum Work {
    /// So many deliveries of a queue.
    Queue(Arc<Held>, usize),
    /// Messages that could not be sent back.
    Again(Arc<Held>, Vec<QueueOffset>),
}

impl Line {
    fn put(&self, work: Work) {
        let count = match &work {
            Work::Queue(_, count) => *count,
            Work::Again(..) => 1,
        };
        lock(&self.queues).push_back(work);
        for _ in 0..count {
            self.arrived.notify_one();
        }
    }

    /// The next work, for one worker; `None` when there will be none any more.
    async fn next(&self) -> Option<Work> {
        loop {
            let mut arrived = pin!(self.arrived.notified());
            arrived.as_mut().enable();
            if self.is_closed.load(Ordering::Acquire) {
                return None;
            }
            if let Some(work) = self.take() {
                return Some(work);
            }
            arrived.await;
        }
    }

    fn take(&self) -> Option<Work> {
        let mut queues = lock(&self.queues);
        match queues.pop_front()? {
            Work::Queue(held, count) if count > 1 => {
                queues.push_back(Work::Queue(Arc::clone(&held), count - 1));
                Some(Work::Queue(held, 1))
            }
            work => Some(work),
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        lock(&self.queues).clear();
        self.arrived.notify_waiters();
    }
}

/// A concurrent consumer's listener, and the line before it.
pub(super) struct Desk<L> {
    listener: L,
    terms: Terms,
    line: Line,
}

/// What the member sees of it.
pub(super) struct ConcurrentSink<L>(pub(super) Arc<Desk<L>>);

impl<L: Listener> Desk<L> {
    pub(super) fn new(listener: L, terms: Terms) -> Arc<Self> {
        Arc::new(Self { listener, terms, line: Line::default() })
    }

    /// Starts the workers, and what looks after stuck messages.
    pub(super) fn start(self: &Arc<Self>, member: &Arc<Member>) -> JoinSet<()> {
        let mut workers = JoinSet::new();
        for _ in 0..self.terms.workers {
            workers.spawn(Arc::clone(self).work(Arc::downgrade(member)));
        }
        member.own(tokio::spawn(Arc::clone(self).expire(Arc::downgrade(member))).abort_handle());
        workers
    }

    /// Lets the workers finish what they have, and takes no more.
    pub(super) async fn drain(&self, workers: &mut JoinSet<()>, until: Instant) -> bool {
        self.line.close();
        let ended = async { while workers.join_next().await.is_some() {} };
        timeout_at(until, ended).await.is_ok()
    }

    async fn work(self: Arc<Self>, member: Weak<Member>) {
        while let Some(work) = self.line.next().await {
            let Some(member) = member.upgrade() else { return };
            let batch_max = self.terms.batch_max;
            let (held, messages) = match work {
                Work::Queue(held, _) => {
                    let now = Instant::now();
                    let messages = held.change_quietly(|backlog| backlog.take(batch_max, now));
                    (held, messages)
                }
                Work::Again(held, offsets) => {
                    let message = |backlog: &Backlog, at| backlog.message(at).cloned();
                    let messages = held.with(|backlog| {
                        offsets.into_iter().filter_map(|at| message(backlog, at)).collect()
                    });
                    (held, messages)
                }
            };
            self.consume(&member, &held, messages).await;
            // A listener that never waits must not keep its thread from everything else.
            tokio::task::coop::consume_budget().await;
        }
    }

    async fn consume(
        self: &Arc<Self>,
        member: &Arc<Member>,
        held: &Arc<Held>,
        messages: Vec<ReceivedMessage>,
    ) {
        if messages.is_empty() || held.is_dropped() {
            return;
        }
        let offsets: Vec<_> = messages.iter().map(ReceivedMessage::queue_offset).collect();
        let watch = member.watch(&messages);
        let (verdict, is_panic) = self.verdict(member, messages).await;
        let done = match verdict {
            Verdict::Done => offsets.len(),
            Verdict::DoneFirst(count) => count.min(offsets.len()),
            _ => 0,
        };
        let (done, failed) = offsets.split_at(done);
        let how = match failed.is_empty() {
            true => Ended::Done,
            false if is_panic => Ended::Panicked,
            false => Ended::Failed,
        };
        let count = u64::try_from(done.len()).unwrap_or(u64::MAX);
        watch.end(member, held.queue.topic(), count, how, self.terms.consume_time_max);
        held.finish(done.iter().copied());
        if !failed.is_empty() {
            self.give_back(member, held, failed, verdict).await;
        }
    }

    /// What the listener says; whether it panicked.
    async fn verdict(&self, member: &Member, messages: Vec<ReceivedMessage>) -> (Verdict, bool) {
        let messages = member.shown(messages);
        let span = member.span(&messages);
        let consumed = guarded(self.listener.consume(Delivery::new(messages))).instrument(span);
        match consumed.await {
            Ok(verdict) => (verdict, false),
            Err(panic) => {
                tracing::error!(panic, "the listener panicked, the message comes again");
                (Verdict::Retry, true)
            }
        }
    }

    /// Hands failed messages over to the broker. Those that it does not take stay with this member,
    /// and are tried again after a pause.
    async fn give_back(
        self: &Arc<Self>,
        member: &Arc<Member>,
        held: &Arc<Held>,
        offsets: &[QueueOffset],
        verdict: Verdict,
    ) {
        let again = match verdict {
            Verdict::RetryAt(level) if level > 0 => Again::At(level),
            Verdict::DeadLetter => Again::Never,
            _ => Again::Later,
        };
        let mut left = Vec::new();
        for offset in offsets.iter().copied() {
            // One that was stuck may have been sent back before.
            let message = held.with(|backlog| backlog.message(offset).cloned());
            let Some(message) = message.filter(|_| !held.is_dropped()) else { continue };
            let (group, queue) = (member.group(), &held.queue);
            if member.is_broadcasting() {
                tracing::warn!(group, %queue, %offset, "a failed message is not sent again");
                held.finish([offset]);
                continue;
            }
            match member.send_back(&message, again, self.terms.deliveries_max).await {
                Ok(()) => held.finish([offset]),
                Err(error) => {
                    tracing::warn!(group, %queue, %offset, %error, "kept for another try");
                    held.change_quietly(|backlog| backlog.count_delivery(offset));
                    left.push(offset);
                }
            }
        }
        if !left.is_empty() {
            let (desk, held) = (Arc::downgrade(self), Arc::clone(held));
            let later = tokio::spawn(async move {
                sleep(LOCAL_PAUSE).await;
                if let Some(desk) = desk.upgrade() {
                    desk.line.put(Work::Again(held, left));
                }
            });
            member.own(later.abort_handle());
        }
    }

    /// Gives messages whose listener takes too long to another member, so that they don't keep the
    /// queue's offset from going on.
    async fn expire(self: Arc<Self>, member: Weak<Member>) {
        let period = (self.terms.consume_time_max / 4).max(Duration::from_millis(10));
        loop {
            sleep(period).await;
            let Some(member) = member.upgrade() else { return };
            for held in member.all_held() {
                for _ in 0..STUCK_MAX {
                    if !self.expire_first(&member, &held).await {
                        break;
                    }
                }
            }
        }
    }

    async fn expire_first(&self, member: &Member, held: &Held) -> bool {
        let limit = self.terms.consume_time_max;
        let stuck = held.with(|backlog| backlog.stuck(limit, Instant::now()));
        let Some(message) = stuck.filter(|_| !held.is_dropped()) else { return false };
        let offset = message.queue_offset();
        tracing::warn!(group = member.group(), queue = %held.queue, %offset, "stuck in the listener");
        let level = Again::At(STUCK_LEVEL);
        let is_sent = !member.is_broadcasting()
            && member.send_back(&message, level, self.terms.deliveries_max).await.is_ok();
        if is_sent {
            held.finish([offset]);
        }
        is_sent
    }
}

impl<L: Listener> Sink for ConcurrentSink<L> {
    fn arrived(&self, held: &Arc<Held>, count: usize) {
        let deliveries = count.div_ceil(self.0.terms.batch_max.max(1));
        self.0.line.put(Work::Queue(Arc::clone(held), deliveries));
    }

    fn acquired(&self, _member: &Arc<Member>, _held: &Arc<Held>) {}

    fn failed(&self, error: Error) {
        tracing::error!(%error, "cannot pull");
    }

    fn consume_directly(
        &self,
        message: ReceivedMessage,
    ) -> Option<Pin<Box<dyn Future<Output = Directly> + Send>>> {
        let desk = Arc::clone(&self.0);
        Some(Box::pin(async move {
            match guarded(desk.listener.consume(Delivery::new(vec![message]))).await {
                Ok(Verdict::Done) => Directly { result: "CR_SUCCESS", remark: None },
                Ok(Verdict::DoneFirst(1..)) => Directly { result: "CR_SUCCESS", remark: None },
                Ok(_) => Directly { result: "CR_LATER", remark: None },
                Err(panic) => Directly { result: "CR_THROW_EXCEPTION", remark: Some(panic) },
            }
        }))
    }

    fn concurrency(&self) -> usize {
        self.0.terms.workers
    }
}
