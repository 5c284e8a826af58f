//! Which consumer groups have lost messages that they had not read, because retention gave them up.
//!
//! The engine tells the queues and from where to where; who had read how far stands in the committed
//! offsets. All offsets of the shard are looked through once per batch of notices, some per turn.

use std::collections::HashMap;

use ringmq_engine::{QueueOffset, Shard, Trimmed};

use crate::broker::keys;

/// Offsets that a turn looks at.
const STEP: usize = 1000;
/// Groups whose losses are counted apart.
const GROUPS_MAX: usize = 1000;
/// A group is named in the log once in this time.
const QUIET_MS: i64 = 60_000;

/// What a group has lost since the process started.
#[derive(Clone, Copy, Debug, Default)]
struct Loss {
    messages: u64,
    /// What the log has not told yet, and when it told something last.
    untold: u64,
    told_ms: i64,
}

#[derive(Debug, Default)]
pub(super) struct Losses {
    notices: Vec<Trimmed>,
    /// What retention gave up of a queue, by its key: from, to.
    queues: HashMap<Box<[u8]>, (QueueOffset, QueueOffset)>,
    /// The last offset that was looked at, while a batch is under way.
    behind: Option<Box<[u8]>>,
    groups: HashMap<Box<str>, Loss>,
}

impl Losses {
    /// Takes notices from the shard, and looks at some more offsets.
    pub(super) fn step(&mut self, shard: &mut Shard, now_ms: i64) {
        if self.queues.is_empty() {
            shard.take_trimmed(&mut self.notices);
            for notice in self.notices.drain(..) {
                let Some(key) = shard.queue_key(notice.queue) else { continue };
                let queue = self.queues.entry(key.into()).or_insert((notice.from, notice.to));
                queue.1 = queue.1.max(notice.to);
            }
            if self.queues.is_empty() {
                return;
            }
        }
        let from = self.behind.take().unwrap_or_else(|| keys::OFFSET_PREFIX.into());
        let mut key = Vec::new();
        for (fact, value) in shard.facts_behind(&from).take(STEP) {
            if !fact.starts_with(keys::OFFSET_PREFIX) {
                break;
            }
            self.behind = Some(fact.into());
            let Some((group, topic, queue_id)) = keys::parse_offset(fact) else { continue };
            keys::queue(topic, queue_id, &mut key);
            let Some(&(from, to)) = self.queues.get(&*key) else { continue };
            let Ok(value) = value.try_into().map(i64::from_be_bytes) else { continue };
            let unread = QueueOffset::new(value).unwrap_or_default().max(from);
            self.note(group, u64::try_from(to.since(unread)).unwrap_or(u64::MAX));
        }
        if self.behind.is_none() {
            self.queues.clear();
            self.tell(shard.geometry().shard(), now_ms);
        }
    }

    fn note(&mut self, group: &str, messages: u64) {
        if messages == 0 {
            return;
        }
        if !self.groups.contains_key(group) && self.groups.len() >= GROUPS_MAX {
            return;
        }
        let loss = self.groups.entry(group.into()).or_default();
        loss.messages += messages;
        loss.untold += messages;
    }

    fn tell(&mut self, shard: u32, now_ms: i64) {
        for (group, loss) in &mut self.groups {
            if loss.untold > 0 && (now_ms - loss.told_ms >= QUIET_MS || loss.told_ms == 0) {
                tracing::warn!(
                    shard,
                    %group,
                    messages = loss.untold,
                    "a consumer group has lost messages that it had not read: they are past their \
                     age or the disk budget"
                );
                (loss.untold, loss.told_ms) = (0, now_ms);
            }
        }
    }

    /// Messages lost by group.
    pub(super) fn figures(&self) -> Vec<(String, u64)> {
        let mut figures: Vec<_> =
            self.groups.iter().map(|(group, loss)| (group.to_string(), loss.messages)).collect();
        figures.sort_unstable();
        figures
    }
}
