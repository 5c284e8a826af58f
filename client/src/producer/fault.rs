//! Latency faults: brokers that were slow or failed are left out for a while.
//!
//! After each attempt a broker's latency decides, by a table, for how long it is left out; one that
//! failed counts as very slow. There are two rules, that of Java's client 4.9 and that of 5.x.
//!
//! Source: Apache RocketMQ 4.9.8 and 5.3.3, `MQFaultStrategy`, `LatencyFaultToleranceImpl`.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{MessageQueue, lock, route::Route, unique};

/// By which rule slow brokers are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LatencyRule {
    /// That of Java's client 4.9: a broker that took 550 ms is left out for 30 s, up to one that took
    /// 15 s or failed, for 10 minutes. If all are left out, one of the better half is taken.
    V4,
    /// That of 5.x, the default: 550 ms cost 2 s, up to 30 s for 15 s, and a failure 10 s. If all are
    /// left out, one that last failed to answer is avoided.
    #[default]
    V5,
}

/// What an attempt says about its broker.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// It answered after this time.
    Answered(Duration),
    /// It could not be reached, or did not answer.
    Unreachable,
    /// It refused what another broker may take.
    Refused,
    /// The client could not even try.
    NotTried,
}

/// How slow a broker was at least, in ms, and how long it is left out then, in ms.
type Table = [(u64, u64); 7];

const TABLE_V4: Table = [
    (50, 0),
    (100, 0),
    (550, 30_000),
    (1000, 60_000),
    (2000, 120_000),
    (3000, 180_000),
    (15_000, 600_000),
];

const TABLE_V5: Table =
    [(50, 0), (100, 0), (550, 2000), (1800, 5000), (3000, 6000), (5000, 10_000), (15_000, 30_000)];

impl LatencyRule {
    const fn table(self) -> &'static Table {
        match self {
            Self::V4 => &TABLE_V4,
            Self::V5 => &TABLE_V5,
        }
    }

    /// How slow a broker counts that failed.
    const fn isolation(self) -> Duration {
        match self {
            Self::V4 => Duration::from_secs(30),
            Self::V5 => Duration::from_secs(10),
        }
    }

    /// How long a broker with this latency is left out.
    fn left_out(self, latency: Duration) -> Duration {
        let ms = latency.as_millis();
        let row = self.table().iter().rev().find(|(slow, _)| u128::from(*slow) <= ms);
        Duration::from_millis(row.map_or(0, |(_, out)| *out))
    }

    /// The latency that an event counts as, and whether the broker still answers.
    const fn judge(self, event: Event) -> (Duration, bool) {
        match (self, event) {
            (_, Event::Answered(latency)) => (latency, true),
            (Self::V4, _) | (Self::V5, Event::Unreachable) => (self.isolation(), true),
            (Self::V5, Event::Refused) => (self.isolation(), false),
            (Self::V5, Event::NotTried) => (Duration::ZERO, true),
        }
    }
}

#[derive(Clone, Debug)]
struct Item {
    latency: Duration,
    left_out_until: Instant,
    is_reachable: bool,
}

/// What one producer knows about its brokers.
#[derive(Debug)]
pub(super) struct Faults {
    rule: LatencyRule,
    is_on: AtomicBool,
    items: Mutex<HashMap<Arc<str>, Item>>,
    /// Round robin over the better half.
    turn: AtomicUsize,
}

impl Faults {
    pub(super) fn new(rule: LatencyRule, is_on: bool) -> Self {
        let turn = usize::try_from(unique::random() >> 33).unwrap_or_default();
        Self {
            rule,
            is_on: AtomicBool::new(is_on),
            items: Mutex::default(),
            turn: AtomicUsize::new(turn),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Turns it on or off. What was learnt is forgotten.
    pub(super) fn switch(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
        lock(&self.items).clear();
    }

    /// Learns from an attempt.
    pub(super) fn note(&self, broker_name: &Arc<str>, event: Event, now: Instant) {
        let (latency, is_reachable) = self.rule.judge(event);
        let until = now + self.rule.left_out(latency);
        let mut items = lock(&self.items);
        match items.get_mut(broker_name) {
            Some(item) => {
                item.latency = latency;
                item.is_reachable = is_reachable;
                item.left_out_until = match self.rule {
                    LatencyRule::V4 => until,
                    // Only ever later.
                    LatencyRule::V5 => until.max(item.left_out_until),
                };
            }
            None => {
                let item = Item { latency, left_out_until: until, is_reachable };
                items.insert(Arc::clone(broker_name), item);
            }
        }
    }

    /// The queue to send to, by the rule.
    pub(super) fn pick(
        &self,
        route: &Route,
        avoid: Option<&str>,
        now: Instant,
    ) -> Option<MessageQueue> {
        let items = lock(&self.items).clone();
        let is_available = |queue: &MessageQueue| {
            items.get(queue.broker_name()).is_none_or(|item| item.left_out_until <= now)
        };
        match self.rule {
            LatencyRule::V4 => {
                route.pick_where(is_available).or_else(|| self.pick_at_least(route, &items, now))
            }
            LatencyRule::V5 => {
                let is_other = |queue: &MessageQueue| avoid != Some(queue.broker_name());
                let is_reachable = |queue: &MessageQueue| {
                    items.get(queue.broker_name()).is_none_or(|item| item.is_reachable)
                };
                route
                    .pick_where(|queue| is_available(queue) && is_other(queue))
                    .or_else(|| route.pick_where(|queue| is_reachable(queue) && is_other(queue)))
                    .or_else(|| route.pick(None))
            }
        }
        .cloned()
    }

    /// A queue of one of the better half of all brokers, when all are left out.
    fn pick_at_least<'r>(
        &self,
        route: &'r Route,
        items: &HashMap<Arc<str>, Item>,
        now: Instant,
    ) -> Option<&'r MessageQueue> {
        let mut ranked: Vec<_> = items.iter().collect();
        ranked.sort_by_key(|(_, item)| {
            (now < item.left_out_until, item.latency, item.left_out_until)
        });
        let half = (ranked.len() / 2).max(1);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let best = turn.checked_rem(half).and_then(|at| ranked.get(at)).map(|(name, _)| &***name);
        let best = best.and_then(|name| {
            let of_best = route.pick_where(|queue| queue.broker_name() == name);
            if of_best.is_none() {
                // The broker has no such topic any more.
                lock(&self.items).remove(name);
            }
            of_best
        });
        best.or_else(|| route.pick(None))
    }
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::body;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn tables_are_the_documented_ones() {
        let v4 =
            [(49, 0), (549, 0), (550, 30), (1000, 60), (2000, 120), (3000, 180), (15_000, 600)];
        for (latency, out) in v4 {
            assert_eq!(LatencyRule::V4.left_out(ms(latency)), ms(out * 1000), "{latency}");
        }
        let v5 = [(549, 0), (550, 2), (1800, 5), (3000, 6), (5000, 10), (15_000, 30)];
        for (latency, out) in v5 {
            assert_eq!(LatencyRule::V5.left_out(ms(latency)), ms(out * 1000), "{latency}");
        }
        let failed = |rule: LatencyRule| rule.left_out(rule.judge(Event::Unreachable).0);
        assert_eq!((failed(LatencyRule::V4), failed(LatencyRule::V5)), (ms(600_000), ms(10_000)));
    }

    fn three() -> Route {
        let broker =
            |name, port| format!(r#"{{"brokerAddrs":{{"0":"h:{port}"}},"brokerName":"{name}"}}"#);
        let queues = |name| {
            format!(r#"{{"brokerName":"{name}","perm":6,"readQueueNums":4,"writeQueueNums":4}}"#)
        };
        let json = format!(
            r#"{{"brokerDatas":[{},{},{}],"queueDatas":[{},{},{}]}}"#,
            broker("a", 1),
            broker("b", 2),
            broker("c", 3),
            queues("a"),
            queues("b"),
            queues("c")
        );
        Route::new("T", body::decode(json.as_bytes()).unwrap(), Instant::now())
    }

    /// Which brokers get 120 sends, one after the other.
    fn spread(faults: &Faults, route: &Route, now: Instant) -> HashMap<String, usize> {
        let mut spread = HashMap::new();
        for _ in 0..120 {
            let queue = faults.pick(route, None, now).unwrap();
            *spread.entry(queue.broker_name().to_owned()).or_default() += 1;
        }
        spread
    }

    #[track_caller]
    fn check(spread: &HashMap<String, usize>, brokers: &[&str]) {
        let mut names: Vec<_> = spread.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, brokers);
        let share = 120 / brokers.len();
        assert!(spread.values().all(|count| count.abs_diff(share) <= 20), "{spread:?}");
    }

    #[test]
    fn a_slow_broker_is_left_out_for_its_time() {
        for (rule, out) in [(LatencyRule::V4, 120_000), (LatencyRule::V5, 5000)] {
            let (faults, route, now) = (Faults::new(rule, true), three(), Instant::now());
            check(&spread(&faults, &route, now), &["a", "b", "c"]);
            faults.note(&"b".into(), Event::Answered(ms(2000)), now);
            check(&spread(&faults, &route, now + ms(out - 1)), &["a", "c"]);
            check(&spread(&faults, &route, now + ms(out)), &["a", "b", "c"]);
        }
    }

    #[test]
    fn a_success_ends_the_time_by_the_older_rule_only() {
        for (rule, brokers) in
            [(LatencyRule::V4, &["a", "b", "c"][..]), (LatencyRule::V5, &["a", "c"])]
        {
            let (faults, route, now) = (Faults::new(rule, true), three(), Instant::now());
            faults.note(&"b".into(), Event::Answered(ms(2000)), now);
            faults.note(&"b".into(), Event::Answered(ms(1)), now);
            check(&spread(&faults, &route, now + ms(1)), brokers);
        }
    }

    #[test]
    fn when_all_are_left_out_the_better_ones_are_taken() {
        let (route, now) = (three(), Instant::now());
        let faults = Faults::new(LatencyRule::V4, true);
        for (name, latency) in [("a", 700), ("b", 2000), ("c", 4000)] {
            faults.note(&name.into(), Event::Answered(ms(latency)), now);
        }
        check(&spread(&faults, &route, now), &["a"]);

        let faults = Faults::new(LatencyRule::V5, true);
        for name in ["a", "b"] {
            faults.note(&name.into(), Event::Unreachable, now);
        }
        faults.note(&"c".into(), Event::Refused, now);
        check(&spread(&faults, &route, now), &["a", "b"]);
        let queue = faults.pick(&route, Some("a"), now).unwrap();
        assert_eq!(queue.broker_name(), "b");
    }

    #[test]
    fn a_broker_that_lost_the_topic_is_forgotten() {
        let (faults, now) = (Faults::new(LatencyRule::V4, true), Instant::now());
        let one = r#"{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"a"}],
            "queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":1,"writeQueueNums":1}]}"#;
        let route = Route::new("T", body::decode(one.as_bytes()).unwrap(), now);
        faults.note(&"gone".into(), Event::Answered(ms(700)), now);
        faults.note(&"a".into(), Event::Answered(ms(4000)), now);
        assert_eq!(faults.pick(&route, None, now).unwrap().broker_name(), "a");
        assert_eq!(lock(&faults.items).len(), 1);
    }

    #[test]
    fn a_switch_forgets() {
        let (faults, route, now) = (Faults::new(LatencyRule::V5, true), three(), Instant::now());
        faults.note(&"b".into(), Event::Unreachable, now);
        faults.switch(false);
        assert!(!faults.is_on());
        faults.switch(true);
        check(&spread(&faults, &route, now), &["a", "b", "c"]);
    }
}
