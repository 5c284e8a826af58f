//! Each queue in its order: one delivery of a queue at a time, and one member for it at a time.
//!
//! Every held queue has a task of its own. It waits for messages, for the broker's lock and for one
//! of the places that limit how many queues are worked on at once, and hands the next delivery to
//! the listener. What is not done stays at the head of the queue.
//!
//! Source of the rules: Apache RocketMQ 4.9.8, `ConsumeMessageOrderlyService`.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};
use tracing::Instrument;

use super::listener::{Delivery, OrderedListener, OrderedVerdict, guarded};
use crate::{
    Error, QueueOffset, ReceivedMessage,
    consumer::{
        held::Held,
        member::{Directly, Member, Sink},
        retry::Again,
    },
    trace::Ended,
};

/// Shortest and longest pause of a queue. Source: as above,
/// `submitConsumeRequestLater`.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(30));

/// What an ordered consumer is set up with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) workers: usize,
    pub(super) batch_max: usize,
    /// `None` delivers a message again for ever.
    pub(super) deliveries_max: Option<i32>,
    pub(super) pause: Duration,
}

/// An ordered consumer's listener.
pub(super) struct Desk<L> {
    listener: L,
    terms: Terms,
    places: Semaphore,
}

/// What the member sees of it.
pub(super) struct OrderedSink<L>(pub(super) Arc<Desk<L>>);

/// How a queue goes on.
enum Next {
    AtOnce,
    After(Duration),
}

impl<L: OrderedListener> Desk<L> {
    pub(super) fn new(listener: L, terms: Terms) -> Arc<Self> {
        Arc::new(Self { listener, terms, places: Semaphore::new(terms.workers) })
    }

    /// Waits until no listener runs any more.
    pub(super) async fn drain(&self, until: Instant) -> bool {
        let all = u32::try_from(self.terms.workers).unwrap_or(u32::MAX);
        let is_drained = timeout_at(until, self.places.acquire_many(all)).await.is_ok();
        self.places.close();
        is_drained
    }

    async fn work(self: Arc<Self>, member: Weak<Member>, held: Arc<Held>) {
        loop {
            let is_locked = member.upgrade().is_none_or(|member| !member.has_locks());
            let ready = || match held.is_closing() {
                true => Some(false),
                false => held.with(|backlog| backlog.has_waiting()).then_some(true),
            };
            if !held.until(ready).await {
                return;
            }
            let Ok(place) = self.places.acquire().await else { return };
            let Some(member) = member.upgrade() else { return };
            if !is_locked && !held.is_locked() {
                drop((place, member));
                // A renewal that succeeds tells of itself; one that fails drops the queue.
                held.until(|| (held.is_closing() || held.is_locked()).then_some(())).await;
                continue;
            }
            let next = {
                let _turn = held.turns.listener.lock().await;
                match held.is_closing() || member.is_stopping() {
                    true => return,
                    false => self.consume(&member, &held).await,
                }
            };
            drop((place, member));
            if let Next::After(pause) = next {
                sleep(pause.clamp(PAUSE.0, PAUSE.1)).await;
            }
            // A listener that never waits must not keep its thread from everything else.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Gives the next delivery to the listener.
    async fn consume(&self, member: &Arc<Member>, held: &Arc<Held>) -> Next {
        let started = Instant::now();
        let messages = held.change_quietly(|backlog| backlog.take(self.terms.batch_max, started));
        if messages.is_empty() {
            return Next::AtOnce;
        }
        let (count, watch) = (messages.len(), member.watch(&messages));
        let shown = member.shown(messages.clone());
        let span = member.span(&shown);
        let consumed = guarded(self.listener.consume(Delivery::new(shown))).instrument(span);
        let (verdict, how) = match consumed.await {
            Ok(verdict @ (OrderedVerdict::Done | OrderedVerdict::Hold)) => (verdict, Ended::Done),
            Ok(verdict) => (verdict, Ended::Failed),
            Err(panic) => {
                tracing::error!(panic, "the listener panicked, the message comes again");
                (OrderedVerdict::Suspend, Ended::Panicked)
            }
        };
        let done = if how == Ended::Done { count } else { 0 };
        let done = u64::try_from(done).unwrap_or(u64::MAX);
        watch.end(member, held.queue.topic(), done, how, Duration::MAX);
        self.settle(member, held, messages, verdict).await
    }

    async fn settle(
        &self,
        member: &Arc<Member>,
        held: &Arc<Held>,
        messages: Vec<ReceivedMessage>,
        verdict: OrderedVerdict,
    ) -> Next {
        let pause = match verdict {
            OrderedVerdict::Hold => return Next::AtOnce,
            OrderedVerdict::Done => {
                held.finish(held.with(|backlog| backlog.taken()));
                return Next::AtOnce;
            }
            OrderedVerdict::SuspendFor(pause) => pause,
            _ => self.terms.pause,
        };
        let is_dead = |message: &ReceivedMessage| {
            verdict == OrderedVerdict::DeadLetter
                || self.terms.deliveries_max.is_some_and(|max| max <= message.reconsume_times())
        };
        if verdict != OrderedVerdict::Rollback && messages.iter().all(is_dead) {
            match self.bury(member, &messages).await {
                Ok(()) => {
                    held.finish(messages.iter().map(ReceivedMessage::queue_offset));
                    return Next::AtOnce;
                }
                Err(error) => {
                    let (group, queue) = (member.group(), &held.queue);
                    tracing::warn!(group, %queue, %error, "no dead letter could be written");
                }
            }
        }
        let first = messages.first().map_or(QueueOffset::ZERO, ReceivedMessage::queue_offset);
        held.change(|backlog| match verdict {
            OrderedVerdict::Rollback => backlog.put_back(QueueOffset::ZERO),
            _ => backlog.put_back(first),
        });
        Next::After(pause)
    }

    /// Sends messages to the dead letters: a broker puts there what comes to the retry topic too
    /// often.
    async fn bury(&self, member: &Member, messages: &[ReceivedMessage]) -> Result<(), Error> {
        if member.is_broadcasting() {
            tracing::warn!(group = member.group(), "failed messages are not kept");
            return Ok(());
        }
        for message in messages {
            let max = self.terms.deliveries_max.unwrap_or(message.reconsume_times());
            member.send_anew(message, Again::Never, max).await?;
        }
        Ok(())
    }
}

impl<L: OrderedListener> Sink for OrderedSink<L> {
    /// The queue's task is told by the queue itself.
    fn arrived(&self, _held: &Arc<Held>, _count: usize) {}

    fn acquired(&self, member: &Arc<Member>, held: &Arc<Held>) {
        // Not aborted when the queue is dropped: a listener that runs comes to its end first.
        let work = Arc::clone(&self.0).work(Arc::downgrade(member), Arc::clone(held));
        drop(tokio::spawn(work));
    }

    fn failed(&self, error: Error) {
        tracing::error!(%error, "cannot pull");
    }

    fn consume_directly(
        &self,
        message: ReceivedMessage,
    ) -> Option<Pin<Box<dyn Future<Output = Directly> + Send>>> {
        let desk = Arc::clone(&self.0);
        Some(Box::pin(async move {
            let (result, remark) =
                match guarded(desk.listener.consume(Delivery::new(vec![message]))).await {
                    Ok(OrderedVerdict::Done | OrderedVerdict::Hold) => ("CR_SUCCESS", None),
                    Ok(OrderedVerdict::Rollback) => ("CR_ROLLBACK", None),
                    Ok(_) => ("CR_LATER", None),
                    Err(panic) => ("CR_THROW_EXCEPTION", Some(panic)),
                };
            Directly { result, remark }
        }))
    }

    fn concurrency(&self) -> usize {
        self.0.terms.workers
    }
}
