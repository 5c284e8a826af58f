//! Offsets: where a queue is begun, and how far it is done.
//!
//! What is unknown is neither 0 nor absent: a queue whose offset cannot be learned is not held, so
//! that nothing is ever committed for it, nor consumed below what is stored.
//!
//! Commits of several queues are on their way at once, but for the first one of a topic at a broker.
//! Apache's brokers keep the offsets of a group and topic in one table, which the first commit makes;
//! of several first ones in different threads, each makes its own and the last table stays, so that
//! commits are lost which were answered with success. Seen with 4.9.7; 5.5.0 has the same
//! `ConsumerOffsetManager.commitOffset`. Two members that commit first in the same moment can still
//! meet there; each queue's next commit makes up for it.
//!
//! Source: Apache RocketMQ 4.9.8, `RebalancePushImpl.computePullFromWhere`,
//! `RemoteBrokerOffsetStore`, `LocalFileOffsetStore`.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use ringmq_protocol::names;
use tokio::{
    sync::OnceCell,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};

use super::{
    held::Held,
    member::{Member, StartFrom},
};
use crate::{Error, MessageQueue, QueueOffset, lock};

/// Most commits that wait for an answer at one time.
const COMMITS_MAX: usize = 64;

/// How long the last commit of a queue that is given up may take: the next holder waits.
const LAST_COMMIT_TIME: Duration = Duration::from_secs(3);

/// Where a queue is begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) offset: QueueOffset,
    /// What need not be stored.
    pub(super) committed: Option<QueueOffset>,
}

/// Which brokers have an offset of the group, by topic and broker. There are as many entries as the
/// member has held queues of.
#[derive(Debug, Default)]
pub(super) struct Tables(Mutex<BTreeMap<Place, Arc<OnceCell<()>>>>);

/// A topic at a broker.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    topic: String,
    broker_name: String,
}

impl Tables {
    /// Set once a commit for the queue's topic has arrived at the queue's broker.
    fn of(&self, queue: &MessageQueue) -> Arc<OnceCell<()>> {
        let place = Place { topic: queue.topic().into(), broker_name: queue.broker_name().into() };
        Arc::clone(lock(&self.0).entry(place).or_default())
    }
}

/// Commits from time to time, until the member stops.
pub(super) async fn run(member: Arc<Member>) {
    let mut stopped = member.stopped.subscribe();
    // Without a period the ticks are there, far apart, and nobody looks at them.
    let period = member.settings.commit_period.unwrap_or(Duration::MAX);
    let period = period.clamp(Duration::from_millis(1), Duration::from_secs(86_400));
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stopped.wait_for(|stopped| *stopped) => return,
        }
        if member.settings.commit_period.is_some()
            && let Err(error) = member.commit_all().await
        {
            tracing::warn!(group = member.group(), %error, "commit failed");
        }
    }
}

impl Member {
    /// Where to begin a queue: where the group has left off, or else there.
    ///
    /// # Errors
    ///
    /// What the broker or the way to it says, or why the file cannot be read.
    pub(super) async fn start_of(
        &self,
        queue: &MessageQueue,
        start_from: StartFrom,
    ) -> Result<Start, Error> {
        let shared = &self.client.shared;
        let committed = match &self.settings.file {
            Some(file) => file.load().map_err(Error::OffsetFile)?.get(queue).copied(),
            None => shared.committed(self.group(), queue).await?,
        };
        if let Some(offset) = committed {
            return Ok(Start { offset, committed });
        }
        let is_retry = names::group_of_retry_topic(queue.topic()).is_some();
        let offset = match start_from {
            // The first retry of a new group must not be missed.
            StartFrom::Last if is_retry => shared.min_offset(queue).await?,
            StartFrom::Time(_) if is_retry => shared.max_offset(queue).await?,
            StartFrom::First => shared.min_offset(queue).await?,
            StartFrom::Last => shared.max_offset(queue).await?,
            StartFrom::Time(time) => shared.search_offset(queue, time).await?,
        };
        // The first message is where the group would begin without a commit, too.
        let committed = (start_from == StartFrom::First).then_some(offset);
        Ok(Start { offset, committed })
    }

    /// Commits all queues that went on since the last time.
    ///
    /// # Errors
    ///
    /// The first failure; the other queues are committed all the same.
    pub(crate) async fn commit_all(self: &Arc<Self>) -> Result<(), Error> {
        let all = self.all_held().into_iter();
        let mut due: Vec<_> = all.filter(|held| Some(held.done()) != held.committed()).collect();
        if self.settings.file.is_some() {
            return if due.is_empty() { Ok(()) } else { self.store_all() };
        }
        let mut result = Ok(());
        while !due.is_empty() {
            let mut commits = JoinSet::new();
            for held in due.drain(due.len().saturating_sub(COMMITS_MAX)..) {
                let member = Arc::clone(self);
                commits.spawn(async move { member.commit_one(&held).await });
            }
            while let Some(commit) = commits.join_next().await {
                if let Ok(Err(error)) = commit {
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// Commits a queue, if it is held.
    pub(super) async fn commit_queue(self: &Arc<Self>, queue: &MessageQueue) {
        if let Some(held) = self.held(queue) {
            self.commit_held(&held).await;
        }
    }

    /// Commits a queue. A failure is noted only: whoever holds the queue next gets some messages
    /// again.
    pub(super) async fn commit_held(self: &Arc<Self>, held: &Arc<Held>) {
        if self.settings.commit_period.is_none() || Some(held.done()) == held.committed() {
            return;
        }
        let committed = match self.settings.file {
            Some(_) => self.store_all(),
            None => match timeout(LAST_COMMIT_TIME, self.commit_one(held)).await {
                Ok(committed) => committed,
                Err(_) => return tracing::warn!(queue = %held.queue, "commit took too long"),
            },
        };
        if let Err(error) = committed {
            tracing::warn!(group = self.group(), queue = %held.queue, %error, "commit failed");
        }
    }

    async fn commit_one(&self, held: &Arc<Held>) -> Result<(), Error> {
        let _turn = held.turns.commit.lock().await;
        let done = held.done();
        if held.committed() == Some(done) || !self.is_current(held) {
            return Ok(());
        }
        let committed = self.commit_at(&held.queue, done).await;
        self.figures.committed(committed.is_ok());
        committed?;
        held.set_committed(done);
        Ok(())
    }

    /// Stores an offset, whatever is held, and waits until the broker has it.
    ///
    /// # Errors
    ///
    /// What the broker or the way to it says.
    pub(crate) async fn commit_at(
        &self,
        queue: &MessageQueue,
        offset: QueueOffset,
    ) -> Result<(), Error> {
        let commit = || self.client.shared.commit(self.group(), queue, offset);
        let mut was_first = false;
        let first = async {
            commit().await?;
            was_first = true;
            Ok::<_, Error>(())
        };
        self.tables.of(queue).get_or_try_init(|| first).await?;
        if was_first { Ok(()) } else { commit().await }
    }

    /// Writes the offsets of all queues into the file. Those of queues that are not held, because
    /// a broker is away, stay as they are.
    fn store_all(&self) -> Result<(), Error> {
        let Some(file) = &self.settings.file else { return Ok(()) };
        let all = self.all_held();
        let store = || -> io::Result<BTreeMap<MessageQueue, QueueOffset>> {
            let mut offsets = file.load()?;
            offsets.extend(all.iter().map(|held| (held.queue.clone(), held.done())));
            file.store(&offsets)?;
            Ok(offsets)
        };
        let offsets = store().map_err(Error::OffsetFile)?;
        for held in all {
            if let Some(offset) = offsets.get(&held.queue) {
                held.set_committed(*offset);
            }
        }
        Ok(())
    }
}
