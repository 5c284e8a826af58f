//! Receiving ahead: one task per assigned queue, and one that looks after them.
//!
//! A queue's task pulls, puts the batch into the channel, and pulls again from where the broker
//! says. The channel is bounded, so that a slow application slows the pulls. Failures that may
//! pass are tried again after a pause; others go to the application, too.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use ringmq_protocol::codes::response;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at, sleep},
};

use super::{Inner, StartFrom};
use crate::{Error, MessageQueue, QueueOffset, ReceivedMessage};

/// Pause after a failed pull. Source: Apache RocketMQ 4.9.8,
/// `DefaultMQPushConsumerImpl.pullTimeDelayMillsWhenException`.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Pause after the broker said that it is asked too fast. Source: as above,
/// `PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL`.
const FLOW_CONTROL_PAUSE: Duration = Duration::from_millis(20);

/// Pause after an empty answer that came at once although the broker should have held it, so that
/// such a broker is not asked in a tight loop.
const EMPTY_PAUSE: Duration = Duration::from_millis(20);

/// What one pull brought, on its way to the application.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) queue: MessageQueue,
    pub(super) messages: VecDeque<ReceivedMessage>,
    /// Where the queue is done with all of them.
    pub(super) next_offset: QueueOffset,
}

type Batches = mpsc::Sender<Result<Batch, Error>>;

/// Where a group goes on with a queue.
///
/// # Errors
///
/// What the broker or the way to it says; an unknown offset is not taken for an absent one.
pub(super) async fn start_offset(
    inner: &Inner,
    queue: &MessageQueue,
    start_from: StartFrom,
) -> Result<QueueOffset, Error> {
    let shared = &inner.client.shared;
    if let Some(committed) = shared.committed(&inner.group, queue).await? {
        return Ok(committed);
    }
    match start_from {
        StartFrom::First => shared.min_offset(queue).await,
        StartFrom::Last => shared.max_offset(queue).await,
        StartFrom::Time(time) => shared.search_offset(queue, time).await,
    }
}

/// Looks after the tasks of all queues: starts those of new queues, and commits from time to time.
/// Aborting it aborts them.
pub(super) struct Supervisor {
    inner: Arc<Inner>,
    topics: BTreeSet<String>,
    batches: Batches,
    queues: HashSet<MessageQueue>,
    tasks: JoinSet<()>,
}

impl Supervisor {
    pub(super) fn new(inner: Arc<Inner>, topics: BTreeSet<String>, batches: Batches) -> Self {
        Self { inner, topics, batches, queues: HashSet::new(), tasks: JoinSet::new() }
    }

    pub(super) async fn run(
        mut self,
        queues: Vec<(MessageQueue, QueueOffset)>,
        commit_period: Option<Duration>,
    ) {
        let mut changes = self.inner.client.shared.routes.changes();
        for (queue, start) in queues {
            self.start(queue, Some(start));
        }
        // Without a period the ticks are there, far apart, and nobody looks at them.
        let period = commit_period
            .unwrap_or(Duration::MAX)
            .clamp(Duration::from_millis(1), Duration::from_secs(86_400));
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick(), if commit_period.is_some() => {
                    if let Err(error) = self.inner.commit_done().await {
                        tracing::warn!(group = self.inner.group, %error, "commit failed");
                    }
                }
                changed = changes.changed() => match changed {
                    Ok(()) => self.start_new(),
                    Err(_) => return,
                },
            }
        }
    }

    /// Starts tasks for queues that the topics did not have before.
    fn start_new(&mut self) {
        let routes = &self.inner.client.shared.routes;
        let routes: Vec<_> = self.topics.iter().filter_map(|topic| routes.known(topic)).collect();
        for queue in routes.iter().flat_map(|route| route.subscribe()) {
            if !self.queues.contains(queue) {
                tracing::info!(group = self.inner.group, %queue, "new queue");
                self.start(queue.clone(), None);
            }
        }
    }

    fn start(&mut self, queue: MessageQueue, start: Option<QueueOffset>) {
        self.queues.insert(queue.clone());
        let (inner, batches) = (Arc::clone(&self.inner), self.batches.clone());
        self.tasks.spawn(async move {
            let start = match start {
                Some(start) => start,
                None => match first_offset(&inner, &queue, &batches).await {
                    Some(start) => start,
                    None => return,
                },
            };
            receive(&inner, queue, start, &batches).await;
        });
    }
}

/// Where to start in a queue that came while the consumer was running: nothing of it was there
/// before, so all of it is new. `None` if the consumer is gone.
async fn first_offset(
    inner: &Inner,
    queue: &MessageQueue,
    batches: &Batches,
) -> Option<QueueOffset> {
    loop {
        match start_offset(inner, queue, StartFrom::First).await {
            Ok(start) => return Some(start),
            Err(error) => pass_on(error, queue, batches).await?,
        }
    }
}

/// Pulls a queue for ever, or until the consumer is gone.
async fn receive(inner: &Inner, queue: MessageQueue, start: QueueOffset, batches: &Batches) {
    let mut from = start;
    loop {
        let asked = Instant::now();
        let pulled = match inner.pull(&queue, from, inner.hold).await {
            Ok(pulled) => pulled,
            Err(error) => match pass_on(error, &queue, batches).await {
                Some(()) => continue,
                None => return,
            },
        };
        if pulled.is_moved {
            let (from, to) = (from.get(), pulled.next_offset.get());
            tracing::warn!(group = inner.group, %queue, from, to, "the offset is not in the queue");
        }
        if pulled.messages.is_empty() && pulled.next_offset == from {
            if asked.elapsed() < EMPTY_PAUSE {
                sleep(EMPTY_PAUSE).await;
            }
            continue;
        }
        from = pulled.next_offset;
        let messages = pulled.messages.into();
        let batch = Batch { queue: queue.clone(), messages, next_offset: from };
        if batches.send(Ok(batch)).await.is_err() {
            return;
        }
    }
}

/// Waits after a failure, and tells the application if it will not pass by itself. `None` if the
/// consumer is gone.
async fn pass_on(error: Error, queue: &MessageQueue, batches: &Batches) -> Option<()> {
    let pause = match error.code() {
        Some(response::FLOW_CONTROL) => FLOW_CONTROL_PAUSE,
        _ => FAILURE_PAUSE,
    };
    if error.retry_can_help() {
        tracing::debug!(%queue, %error, "pull failed");
    } else {
        batches.send(Err(error)).await.ok()?;
    }
    sleep(pause).await;
    Some(())
}
