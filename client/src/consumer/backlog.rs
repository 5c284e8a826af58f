//! The messages of one queue between their arrival and their end.
//!
//! Messages come in the order of the queue, are taken in that order, and end in any. The offset to
//! commit is that of the first one which has not ended; behind the last one it is where the queue
//! was read up to, messages of other tags included. So a commit never passes an unfinished message.
//!
//! This is a function of what happens to it: it has no clock, no lock and no task.
//!
//! Source: Apache RocketMQ 4.9.8, `ProcessQueue`.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::{QueueOffset, ReceivedMessage};

/// Unfinished messages of one queue.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// By offset, from the first one that has not ended. Ended ones behind it stay as gaps.
    entries: VecDeque<Entry>,
    /// How many from the front have been taken.
    taken: usize,
    /// Where the queue was read up to.
    end: QueueOffset,
    count: usize,
    /// Bodies of unfinished messages. Unit: bytes.
    len: usize,
}

#[derive(Debug)]
struct Entry {
    offset: QueueOffset,
    /// `None` once it has ended.
    message: Option<ReceivedMessage>,
    /// When it was taken.
    since: Option<Instant>,
}

/// How much of a queue may be held at once, before no more is pulled.
///
/// Source: Apache RocketMQ 4.9.8, `DefaultMQPushConsumer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Messages.
    pub(crate) count_max: usize,
    /// Bodies. Unit: bytes.
    pub(crate) len_max: usize,
    /// From the first unfinished message to the last one. Unit: messages of the queue.
    pub(crate) span_max: i64,
}

impl Backlog {
    pub(crate) const fn new(start: QueueOffset) -> Self {
        Self { entries: VecDeque::new(), taken: 0, end: start, count: 0, len: 0 }
    }

    /// Adds what a pull brought; returns how many messages are new. Those before `end` are not.
    pub(crate) fn add(&mut self, messages: Vec<ReceivedMessage>, next: QueueOffset) -> usize {
        let before = self.entries.len();
        self.entries.reserve(messages.len());
        for message in messages {
            let offset = message.queue_offset();
            if offset < self.end {
                continue;
            }
            self.end = offset.next();
            self.count += 1;
            self.len += message.body().len();
            self.entries.push_back(Entry { offset, message: Some(message), since: None });
        }
        self.end = self.end.max(next);
        self.entries.len() - before
    }

    /// Takes the next messages in line.
    pub(crate) fn take(&mut self, count_max: usize, now: Instant) -> Vec<ReceivedMessage> {
        let mut messages = Vec::with_capacity(count_max.min(self.entries.len() - self.taken));
        for entry in self.entries.range_mut(self.taken..) {
            if messages.len() >= count_max {
                break;
            }
            self.taken += 1;
            entry.since = Some(now);
            // Ended ones are among those that were given back.
            messages.extend(entry.message.clone());
        }
        messages
    }

    /// Notes that a message has ended. One that has ended before, or never came, changes nothing.
    pub(crate) fn finish(&mut self, offset: QueueOffset) {
        let Ok(index) = self.entries.binary_search_by_key(&offset, |entry| entry.offset) else {
            return;
        };
        let message = self.entries.get_mut(index).and_then(|entry| entry.message.take());
        let Some(message) = message else { return };
        self.count -= 1;
        self.len -= message.body().len();
        while self.entries.front().is_some_and(|entry| entry.message.is_none()) {
            self.entries.pop_front();
            self.taken = self.taken.saturating_sub(1);
        }
    }

    /// Gives taken messages back from this offset on, to be taken again, each counted as delivered
    /// once more.
    pub(crate) fn put_back(&mut self, from: QueueOffset) {
        let first = self.entries.partition_point(|entry| entry.offset < from).min(self.taken);
        for entry in self.entries.range_mut(first..self.taken) {
            entry.since = None;
            if let Some(message) = &mut entry.message {
                message.count_delivery();
            }
        }
        self.taken = first;
    }

    /// A message that has not ended.
    pub(crate) fn message(&self, offset: QueueOffset) -> Option<&ReceivedMessage> {
        let index = self.entries.binary_search_by_key(&offset, |entry| entry.offset).ok()?;
        self.entries.get(index)?.message.as_ref()
    }

    /// Counts a delivery of a message that the broker does not know of.
    pub(crate) fn count_delivery(&mut self, offset: QueueOffset) {
        if let Ok(index) = self.entries.binary_search_by_key(&offset, |entry| entry.offset)
            && let Some(message) = self.entries.get_mut(index).and_then(|e| e.message.as_mut())
        {
            message.count_delivery();
        }
    }

    /// Offsets of the messages that are taken and have not ended.
    pub(crate) fn taken(&self) -> Vec<QueueOffset> {
        let taken = self.entries.range(..self.taken).filter(|entry| entry.message.is_some());
        taken.map(|entry| entry.offset).collect()
    }

    /// Whether a message waits to be taken.
    pub(crate) fn has_waiting(&self) -> bool {
        self.taken < self.entries.len()
    }

    /// The first unfinished message, if it was taken longer ago than `limit`.
    pub(crate) fn stuck(&self, limit: Duration, now: Instant) -> Option<ReceivedMessage> {
        let first = self.entries.front()?;
        let is_stuck = limit < now.saturating_duration_since(first.since?);
        first.message.clone().filter(|_| is_stuck)
    }

    /// The offset to commit.
    pub(crate) fn done(&self) -> QueueOffset {
        self.entries.front().map_or(self.end, |entry| entry.offset)
    }

    /// Where the queue was read up to.
    pub(crate) const fn end(&self) -> QueueOffset {
        self.end
    }

    /// Whether more may be pulled, while so many messages may be on their way.
    pub(crate) fn has_room(&self, limits: &Limits, coming: usize) -> bool {
        let span = self.span().saturating_add(i64::try_from(coming).unwrap_or(i64::MAX));
        self.count.saturating_add(coming) <= limits.count_max
            && self.len <= limits.len_max
            && span <= limits.span_max
    }

    /// Unfinished messages.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Bodies of unfinished messages. Unit: bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Offsets of the first and the last message, ended ones between them included.
    pub(crate) fn extent(&self) -> Option<(QueueOffset, QueueOffset)> {
        Some((self.entries.front()?.offset, self.entries.back()?.offset))
    }

    /// From the first unfinished message to the last one. Unit: messages of the queue.
    fn span(&self) -> i64 {
        self.extent().map_or(0, |(first, last)| last.get() - first.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests_support::received;

    fn offset(at: i64) -> QueueOffset {
        QueueOffset::new(at)
    }

    fn filled(offsets: &[i64], next: i64) -> Backlog {
        let mut backlog = Backlog::new(offset(0));
        let messages: Vec<_> = offsets.iter().map(|at| received(*at, "body")).collect();
        assert_eq!(backlog.add(messages, offset(next)), offsets.len());
        backlog
    }

    fn taken(backlog: &mut Backlog, count: usize) -> Vec<i64> {
        let messages = backlog.take(count, Instant::now());
        messages.iter().map(|message| message.queue_offset().get()).collect()
    }

    #[test]
    fn a_commit_never_passes_an_unfinished_message() {
        let mut backlog = filled(&[2, 3, 5, 8], 10);
        assert_eq!(taken(&mut backlog, 3), [2, 3, 5]);
        for (finished, done) in [(5, 2), (2, 3), (2, 3), (3, 8)] {
            backlog.finish(offset(finished));
            assert_eq!(backlog.done(), offset(done), "after {finished}");
        }
        assert_eq!(taken(&mut backlog, 3), [8]);
        backlog.finish(offset(8));
        // What other tags had up to there is done, too.
        assert_eq!((backlog.done(), backlog.count(), backlog.len()), (offset(10), 0, 0));
    }

    #[tokio::test]
    async fn random_orders_of_endings_commit_the_first_gap() {
        for seed in 1..200_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut below = |end: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                usize::try_from(state % u64::try_from(end).unwrap()).unwrap()
            };
            let mut backlog = Backlog::new(offset(0));
            let (mut running, mut next, mut unfinished) = (Vec::new(), 0, Vec::new());
            for _ in 0..300 {
                match below(3) {
                    0 => {
                        let end = next + i64::try_from(below(5)).unwrap();
                        let messages = (next..end).map(|at| received(at, "b")).collect();
                        backlog.add(messages, offset(end));
                        unfinished.extend(next..end);
                        next = end;
                    }
                    1 => running.extend(taken(&mut backlog, below(4))),
                    _ if !running.is_empty() => {
                        let ended = running.swap_remove(below(running.len()));
                        backlog.finish(offset(ended));
                        unfinished.retain(|at| *at != ended);
                    }
                    _ => {}
                }
                let want = unfinished.iter().copied().min().unwrap_or(next);
                assert_eq!(backlog.done(), offset(want), "SEED={seed}");
                assert_eq!(backlog.count(), unfinished.len(), "SEED={seed}");
            }
        }
    }

    #[test]
    fn messages_that_came_before_are_not_added_again() {
        let mut backlog = filled(&[0, 1], 2);
        let again = vec![received(1, "body"), received(2, "body")];
        assert_eq!(backlog.add(again, offset(3)), 1);
        assert_eq!(taken(&mut backlog, 9), [0, 1, 2]);
    }

    #[test]
    fn what_is_put_back_comes_again_in_order_and_counted() {
        let mut backlog = filled(&[0, 1, 2], 3);
        assert_eq!(taken(&mut backlog, 2), [0, 1]);
        backlog.finish(offset(0));
        backlog.put_back(backlog.done());
        let again = backlog.take(9, Instant::now());
        let counts: Vec<_> =
            again.iter().map(|m| (m.queue_offset().get(), m.reconsume_times())).collect();
        assert_eq!(counts, [(1, 1), (2, 0)]);
        // Those before the offset stay taken.
        backlog.put_back(offset(2));
        assert_eq!(backlog.taken(), [offset(1)]);
        assert_eq!(taken(&mut backlog, 9), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_message_is_stuck_after_its_time() {
        let limit = Duration::from_secs(60);
        let mut backlog = filled(&[0, 1], 2);
        tokio::time::advance(limit * 2).await;
        assert!(backlog.stuck(limit, Instant::now()).is_none(), "it waits");
        taken(&mut backlog, 1);
        tokio::time::advance(limit).await;
        assert!(backlog.stuck(limit, Instant::now()).is_none());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(backlog.stuck(limit, Instant::now()).unwrap().queue_offset(), offset(0));
        backlog.finish(offset(0));
        assert!(backlog.stuck(limit, Instant::now()).is_none(), "the next one is not taken");
    }

    #[test]
    fn each_limit_stops_the_pulls() {
        let limits = Limits { count_max: 3, len_max: 16, span_max: 9 };
        assert!(filled(&[0, 1, 2], 3).has_room(&limits, 0));
        assert!(!filled(&[0, 1, 2, 3], 4).has_room(&limits, 0), "messages");
        assert!(
            !filled(&[0, 1, 2, 3], 4).has_room(&Limits { count_max: 9, len_max: 15, ..limits }, 0)
        );
        assert!(filled(&[0, 9], 10).has_room(&limits, 0));
        assert!(!filled(&[0, 10], 11).has_room(&limits, 0), "span");
        assert!(filled(&[0, 1], 2).has_room(&limits, 1));
        assert!(!filled(&[0, 1], 2).has_room(&limits, 2), "messages on their way");
    }
}
