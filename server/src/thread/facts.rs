//! What the control thread has the shards of a data thread keep and forget.

use ringmq_engine::{AppendError, EpochMillis, Sequence, Shard, shard_of};
use tokio::sync::oneshot;

use super::{LocalShard, Pending, Thread};
use crate::{
    broker::{Ticket, keys},
    control::{Fact, QUEUES_PER_TOPIC_MAX},
    net::signal::after_the_others,
};

/// Queue ids, or offsets, that are looked at before connections have their turn again.
const PIECE: usize = 4096;

/// Whether facts or deletions are durable; why not, for the log.
pub(super) type Kept = Result<(), String>;

impl Thread {
    /// Makes facts durable on shard 0, in order.
    pub(super) async fn put_facts(&self, facts: Vec<Fact>, reply: oneshot::Sender<Kept>) {
        let kept = match self.shards.first().filter(|shard| shard.number == 0) {
            Some(shard) => self.put_on(shard, facts).await,
            None => Err("shard 0 is on another thread".to_owned()),
        };
        // Whoever asked may have given up.
        let _ = reply.send(kept);
    }

    async fn put_on(&self, shard: &LocalShard, facts: Vec<Fact>) -> Kept {
        let mut last = None;
        for Fact { key, value } in facts {
            let put = |engine: &mut Shard, now| engine.put_fact(&key, value.as_deref(), now);
            last = Some(self.when_there_is_room(shard, put).await?);
        }
        self.committed(shard, last).await
    }

    /// Deletes the queues of a topic and the offsets that groups have committed for them.
    pub(super) async fn delete_topic(&self, topic: &str, reply: oneshot::Sender<Kept>) {
        let mut deleted = Ok(());
        for shard in &self.shards {
            deleted = self.delete_on(shard, topic).await;
            if deleted.is_err() {
                break;
            }
        }
        let _ = reply.send(deleted);
    }

    async fn delete_on(&self, shard: &LocalShard, topic: &str) -> Kept {
        self.delete_queues(shard, topic).await?;
        // Offsets that were on their way are committed now as well, and no pull adds another.
        let mut behind = keys::OFFSET_PREFIX.to_vec();
        let mut last = None;
        loop {
            let found = shard.engine(|engine| offsets_of(engine, topic, &mut behind));
            for key in found.keys {
                let remove = |engine: &mut Shard, now| engine.put_fact(&key, None, now);
                last = Some(self.when_there_is_room(shard, remove).await?);
            }
            if found.is_end {
                return self.committed(shard, last).await;
            }
            after_the_others().await;
        }
    }

    async fn delete_queues(&self, shard: &LocalShard, topic: &str) -> Kept {
        let (mut key, mut last) = (Vec::new(), None);
        for (n, queue_id) in (0..QUEUES_PER_TOPIC_MAX).enumerate() {
            if n.is_multiple_of(PIECE) {
                after_the_others().await;
            }
            if shard_of(topic.as_bytes(), queue_id, self.shared.shards) != shard.number {
                continue;
            }
            keys::queue(topic, queue_id.cast_signed(), &mut key);
            let Some(queue) = shard.engine(|engine| engine.queue(&key)) else { continue };
            let delete = |engine: &mut Shard, now| engine.delete_queue(queue, now);
            last = Some(self.when_there_is_room(shard, delete).await?);
        }
        let flush = |engine: &mut Shard, now| engine.flush_staged(now);
        last = self.when_there_is_room(shard, flush).await?.or(last);
        self.committed(shard, last).await
    }

    /// Calls the engine, again and again as long as it has no room.
    async fn when_there_is_room<T>(
        &self,
        shard: &LocalShard,
        mut call: impl FnMut(&mut Shard, EpochMillis) -> Result<T, AppendError>,
    ) -> Result<T, String> {
        loop {
            let now = EpochMillis::new(crate::clock::epoch_ms());
            match shard.engine(|engine| call(engine, now)) {
                Err(AppendError::Backlogged) => {
                    self.turn.set();
                    shard.room.notified().await;
                }
                result => return result.map_err(|error| error.to_string()),
            }
        }
    }

    /// Waits until this is committed.
    async fn committed(&self, shard: &LocalShard, sequence: Option<Sequence>) -> Kept {
        let Some(sequence) = sequence else { return Ok(()) };
        let (reply, committed) = oneshot::channel();
        shard.answer_at(sequence, Ticket::of_nobody(), Pending::Facts(reply));
        self.turn.set();
        committed.await.map_err(|_| "the thread is stopping".to_owned())?
    }
}

/// Keys of some consumer offsets.
struct Found {
    keys: Vec<Vec<u8>>,
    /// There are no further offsets.
    is_end: bool,
}

/// The offsets of a topic among the next [`PIECE`] offsets, and goes behind those.
fn offsets_of(engine: &Shard, topic: &str, behind: &mut Vec<u8>) -> Found {
    let mut found = Found { keys: Vec::new(), is_end: false };
    let from = behind.clone();
    let mut facts = engine.facts_behind(&from).map(|(key, _)| key);
    for _ in 0..PIECE {
        let next = facts.next().filter(|key| key.starts_with(keys::OFFSET_PREFIX));
        let Some(key) = next else {
            found.is_end = true;
            break;
        };
        if keys::parse_offset(key).is_some_and(|(_, of, _)| of == topic) {
            found.keys.push(key.to_vec());
        }
        behind.clear();
        behind.extend_from_slice(key);
    }
    found
}
