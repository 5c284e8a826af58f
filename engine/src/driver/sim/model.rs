//! What the outside world knows of one shard: a plain map of what it was given, in log order.
//!
//! Every change carries the group that it rides in. The committed frontier then says exactly what
//! must be visible, no more and no less, at any moment of a life and after every restart.
//!
//! A buffered store commits ahead of the device. A second model follows the durable frontier then: it
//! takes the place of the first when the system stops, and the log's prefix says the rest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::keys::{hash_of, keys_of};
use crate::record::{KeyHash, Record, Stamp};
use crate::units::{EpochMillis, LogOffset, Sequence};

/// A record as the workload made it: its bytes are the mark over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) mark: u64,
    pub(super) len: usize,
    pub(super) tag: i64,
}

impl Record for Body {
    fn len(&self) -> usize {
        self.len
    }

    fn tag(&self) -> i64 {
        self.tag
    }

    fn keys(&self, each: &mut dyn FnMut(KeyHash)) {
        keys_of(self.mark).for_each(|key| each(hash_of(key)));
    }

    fn write(&self, _stamp: &Stamp, dst: &mut [u8]) {
        let mark = self.mark.to_be_bytes();
        for piece in dst.chunks_mut(mark.len()) {
            super::disk::copy(&mark, piece);
        }
    }
}

impl Body {
    /// Whether these are the record's bytes.
    pub(super) fn is(&self, bytes: &[u8]) -> bool {
        let mark = self.mark.to_be_bytes();
        bytes.len() == self.len && bytes.chunks(mark.len()).all(|piece| mark.starts_with(piece))
    }
}

/// A record that was accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) body: Body,
    pub(super) position: LogOffset,
    pub(super) time: EpochMillis,
    /// A bit of it, or of what leads to it, was flipped: it may be unreadable, nothing else.
    pub(super) damaged: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Open { queue: usize },
    Delete { queue: usize },
    Append { queue: usize, records: Vec<Stored> },
    Fact { key: Vec<u8>, value: Option<Vec<u8>> },
}

#[derive(Clone, Debug, Default)]
pub(super) struct ShardModel {
    /// What is visible: every record of every queue that is open.
    pub(super) queues: BTreeMap<usize, Vec<Stored>>,
    /// The first offset of each queue that retention has kept.
    pub(super) min: BTreeMap<usize, usize>,
    /// A queue was deleted, some time.
    pub(super) has_deleted: bool,
    /// Queues whose deletion is not committed.
    leaving: BTreeSet<usize>,
    /// Queues whose deletion the last life had not committed when it ended: what retention took from
    /// them meanwhile was told under a number that nobody knew any more.
    pub(super) left: BTreeSet<usize>,
    pub(super) facts: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What was appended above the committed frontier, in log order.
    changes: VecDeque<(Sequence, Change)>,
    /// Records that were given an offset, visible or not, by queue.
    next: BTreeMap<usize, usize>,
    /// The newest staged value of keys that wait for a group.
    pub(super) staged: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Facts whose newest value a flipped bit may have touched.
    pub(super) tainted: BTreeSet<Vec<u8>>,
    /// The highest frontier that the shard has told of.
    pub(super) committed: Sequence,
    /// What is left when the system stops, while that may be less.
    floor: Option<Box<Self>>,
}

impl ShardModel {
    /// Notes a change that rides in this group.
    pub(super) fn change(&mut self, sequence: Sequence, change: Change) {
        if let Some(floor) = &mut self.floor {
            floor.change(sequence, change.clone());
        }
        match &change {
            Change::Append { queue, records } => {
                *self.next.entry(*queue).or_default() += records.len();
            }
            Change::Delete { queue } => {
                self.next.remove(queue);
                self.has_deleted = true;
                self.leaving.insert(*queue);
            }
            Change::Open { .. } | Change::Fact { .. } => {}
        }
        // A staged fact is noticed a moment after its group was closed.
        let behind = self.changes.partition_point(|(known, _)| *known <= sequence);
        self.changes.insert(behind, (sequence, change));
    }

    /// The offset that the next append to a queue must get.
    pub(super) fn next(&self, queue: usize) -> usize {
        self.next.get(&queue).copied().unwrap_or(0)
    }

    pub(super) fn min(&self, queue: usize) -> usize {
        self.min.get(&queue).copied().unwrap_or(0)
    }

    pub(super) fn set_min(&mut self, queue: usize, min: usize) {
        if let Some(floor) = &mut self.floor {
            floor.set_min(queue, min);
        }
        self.min.insert(queue, min);
    }

    /// From here on the store commits ahead of the device.
    pub(super) fn run_ahead(&mut self) {
        self.floor = Some(Box::new(self.clone()));
    }

    /// Follows the frontier of what is both committed and durable.
    pub(super) fn settle(&mut self, settled: Sequence) -> Result<(), String> {
        self.floor.as_mut().map_or(Ok(()), |floor| floor.commit(settled))
    }

    /// The system stops. True when that may cost something that was acknowledged.
    pub(super) fn fall(&mut self) -> bool {
        let Some(floor) = self.floor.take() else { return false };
        let falls = floor.committed < self.committed;
        *self = *floor;
        falls
    }

    /// True between a queue's deletion and its commit, when its key may stand for another queue.
    pub(super) fn is_leaving(&self, queue: usize) -> bool {
        self.leaving.contains(&queue)
    }

    /// Queues whose deletion is not committed.
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len()
    }

    pub(super) fn visible(&self, queue: usize) -> usize {
        self.queues.get(&queue).map_or(0, Vec::len)
    }

    /// True when everything that was appended is visible.
    pub(super) fn is_settled(&self) -> bool {
        self.changes.is_empty() && self.staged.is_empty()
    }

    pub(super) fn waiting(&self) -> usize {
        self.changes.len()
    }

    /// Follows the committed frontier.
    pub(super) fn commit(&mut self, committed: Sequence) -> Result<(), String> {
        if committed < self.committed {
            return Err(format!("the frontier went back from {} to {committed}", self.committed));
        }
        self.committed = committed;
        while self.changes.front().is_some_and(|(sequence, _)| *sequence <= committed) {
            if let Some((_, change)) = self.changes.pop_front() {
                self.apply(change);
            }
        }
        Ok(())
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Open { queue } => drop(self.queues.entry(queue).or_default()),
            Change::Delete { queue } => {
                self.queues.remove(&queue);
                self.min.remove(&queue);
                self.leaving.remove(&queue);
            }
            Change::Append { queue, records } => {
                self.queues.entry(queue).or_default().extend(records);
            }
            Change::Fact { key, value } => {
                self.tainted.remove(&key);
                match value {
                    Some(value) => self.facts.insert(key, value),
                    None => self.facts.remove(&key),
                };
            }
        }
    }

    /// A life has ended: of what was not committed, that is left which the log has kept.
    pub(super) fn restart(&mut self, committed: Sequence) -> Result<(), String> {
        self.commit(committed)?;
        self.floor = None;
        self.changes.clear();
        self.staged.clear();
        self.left = std::mem::take(&mut self.leaving);
        self.next = self.queues.iter().map(|(&queue, records)| (queue, records.len())).collect();
        Ok(())
    }
}
