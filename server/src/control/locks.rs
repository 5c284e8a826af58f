//! Queue locks: which member of a group consumes a queue in order.
//!
//! A lock belongs to a client id for 60 s after its last request, in memory only: after a restart
//! members lock again, which they do every 20 s anyway.
//!
//! Source: Apache RocketMQ 4.9.8, `RebalanceLockManager`.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How long a lock holds after it was asked for.
/// Source: `rocketmq.broker.rebalance.lockMaxLiveTime`.
pub(crate) const LOCK_LIFETIME: Duration = Duration::from_secs(60);
/// Locks in the table at most; beyond it, new ones are not granted.
pub(crate) const LOCKS_MAX: usize = 262_144;

/// A queue as requests name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    pub(crate) topic: Box<str>,
    pub(crate) broker_name: Box<str>,
    pub(crate) queue_id: i32,
}

#[derive(Debug)]
struct Lock {
    client_id: Box<str>,
    asked: Instant,
}

impl Lock {
    fn holds(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.asked) <= LOCK_LIFETIME
    }
}

/// All queue locks, by group and queue.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    groups: HashMap<Box<str>, HashMap<QueueKey, Lock>>,
    count: usize,
}

impl Locks {
    /// Locks or renews one queue for a client; false if another client holds it.
    pub(crate) fn lock(
        &mut self,
        group: &str,
        queue: &QueueKey,
        client_id: &str,
        now: Instant,
    ) -> bool {
        let new = || Lock { client_id: client_id.into(), asked: now };
        if let Some(lock) = self.groups.get_mut(group).and_then(|queues| queues.get_mut(queue)) {
            if lock.holds(now) && *lock.client_id != *client_id {
                return false;
            }
            *lock = new();
            return true;
        }
        if self.count >= LOCKS_MAX {
            return false;
        }
        self.groups.entry(group.into()).or_default().insert(queue.clone(), new());
        self.count += 1;
        true
    }

    /// Gives up a lock, if this client holds it.
    pub(crate) fn unlock(&mut self, group: &str, queue: &QueueKey, client_id: &str) {
        let Some(queues) = self.groups.get_mut(group) else { return };
        if queues.get(queue).is_some_and(|lock| *lock.client_id == *client_id) {
            queues.remove(queue);
            self.count -= 1;
        }
        if queues.is_empty() {
            self.groups.remove(group);
        }
    }

    /// Forgets the locks whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.groups.retain(|_, queues| {
            queues.retain(|_, lock| lock.holds(now));
            !queues.is_empty()
        });
        self.count = self.groups.values().map(HashMap::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(queue_id: i32) -> QueueKey {
        QueueKey { topic: "T".into(), broker_name: "b".into(), queue_id }
    }

    fn start() -> Instant {
        crate::clock::instant()
    }

    #[test]
    fn a_queue_is_held_by_one_client_of_a_group() {
        let (mut locks, now) = (Locks::default(), start());
        assert!(locks.lock("G", &queue(0), "a", now));
        assert!(locks.lock("G", &queue(0), "a", now), "the owner renews");
        assert!(!locks.lock("G", &queue(0), "b", now));
        assert!(locks.lock("G", &queue(1), "b", now), "another queue is free");
        assert!(locks.lock("H", &queue(0), "b", now), "another group does not care");
        let other_broker = QueueKey { broker_name: "c".into(), ..queue(0) };
        assert!(locks.lock("G", &other_broker, "b", now));
    }

    #[test]
    fn only_the_owner_unlocks() {
        let (mut locks, now) = (Locks::default(), start());
        assert!(locks.lock("G", &queue(0), "a", now));
        locks.unlock("G", &queue(0), "b");
        locks.unlock("G", &queue(1), "a");
        locks.unlock("H", &queue(0), "a");
        assert!(!locks.lock("G", &queue(0), "b", now));
        locks.unlock("G", &queue(0), "a");
        assert!(locks.lock("G", &queue(0), "b", now));
        assert_eq!(locks.count, 1);
    }

    #[test]
    fn a_lock_ends_60_seconds_after_it_was_asked_for() {
        let (mut locks, now) = (Locks::default(), start());
        assert!(locks.lock("G", &queue(0), "a", now));
        assert!(locks.lock("G", &queue(0), "a", now + Duration::from_secs(50)));
        assert!(!locks.lock("G", &queue(0), "b", now + Duration::from_secs(110)));
        assert!(locks.lock("G", &queue(0), "b", now + Duration::from_secs(111)));
        locks.expire(now + Duration::from_secs(111));
        assert_eq!(locks.count, 1);
        locks.expire(now + Duration::from_secs(172));
        assert_eq!((locks.count, locks.groups.len()), (0, 0));
    }

    #[test]
    fn a_full_table_grants_nothing_new() {
        let (mut locks, now) = (Locks::default(), start());
        for id in 0..i32::try_from(LOCKS_MAX).unwrap() {
            assert!(locks.lock("G", &queue(id), "a", now));
        }
        assert!(!locks.lock("G", &queue(-1), "a", now));
        assert!(locks.lock("G", &queue(5), "a", now), "renewing needs no room");
        locks.unlock("G", &queue(7), "a");
        assert!(locks.lock("G", &queue(-1), "a", now));
    }
}
