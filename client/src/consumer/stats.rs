//! Counts of a consumer, for its running info.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
    time::Duration,
};

use tokio::time::Instant;

use crate::lock;

/// How much of the past rates are computed over.
const WINDOW: Duration = Duration::from_secs(60);

/// Counts by topic.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    topics: Mutex<BTreeMap<String, Topic>>,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) pulls: u64,
    pub(crate) pulled: u64,
    /// Time of all pulls that brought messages. Unit: milliseconds.
    pub(crate) pull_ms: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    /// Time that the listener took. Unit: milliseconds.
    pub(crate) consume_ms: u64,
}

#[derive(Debug, Default)]
struct Topic {
    sums: Sums,
    /// What the sums were at some moments of the last window, at most one for each second.
    past: VecDeque<(Instant, Sums)>,
}

/// What is shown of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    /// Unit: milliseconds for each.
    pub(crate) pull_time: f64,
    /// Unit: messages a second.
    pub(crate) pulled: f64,
    /// Unit: milliseconds for each.
    pub(crate) consume_time: f64,
    /// Unit: messages a second.
    pub(crate) done: f64,
    /// Unit: messages a second.
    pub(crate) failed: f64,
    /// Messages since the start.
    pub(crate) failed_count: u64,
}

impl Stats {
    pub(crate) fn count(&self, topic: &str, add: impl FnOnce(&mut Sums)) {
        let now = Instant::now();
        let mut topics = lock(&self.topics);
        let topic = match topics.get_mut(topic) {
            Some(topic) => topic,
            None => topics.entry(topic.into()).or_default(),
        };
        topic.remember(now);
        add(&mut topic.sums);
    }

    pub(crate) fn rates(&self) -> BTreeMap<String, Rates> {
        let now = Instant::now();
        let topics = lock(&self.topics);
        topics.iter().map(|(name, topic)| (name.clone(), topic.rates(now))).collect()
    }
}

impl Topic {
    fn remember(&mut self, now: Instant) {
        let is_due = self
            .past
            .back()
            .is_none_or(|(at, _)| Duration::from_secs(1) <= now.saturating_duration_since(*at));
        if is_due {
            self.past.push_back((now, self.sums));
            while self
                .past
                .front()
                .is_some_and(|(at, _)| WINDOW < now.saturating_duration_since(*at))
            {
                self.past.pop_front();
            }
        }
    }

    fn rates(&self, now: Instant) -> Rates {
        let is_recent = |(at, _): &&(Instant, Sums)| now.saturating_duration_since(*at) <= WINDOW;
        let Some((since, before)) = self.past.iter().find(is_recent) else {
            return Rates { failed_count: self.sums.failed, ..Rates::default() };
        };
        let seconds = now.saturating_duration_since(*since).as_secs_f64().max(1.0);
        let sums = &self.sums;
        let per_second = |now: u64, before: u64| float(now - before) / seconds;
        let mean =
            |time: u64, count: u64| if count == 0 { 0.0 } else { float(time) / float(count) };
        let consumed = sums.done + sums.failed - before.done - before.failed;
        Rates {
            pull_time: mean(sums.pull_ms - before.pull_ms, sums.pulls - before.pulls),
            pulled: per_second(sums.pulled, before.pulled),
            consume_time: mean(sums.consume_ms - before.consume_ms, consumed),
            done: per_second(sums.done, before.done),
            failed: per_second(sums.failed, before.failed),
            failed_count: sums.failed,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates are shown to people")]
const fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rates_are_those_of_the_last_minute() {
        let stats = Stats::default();
        for _ in 0..200 {
            stats.count("T", |sums| {
                sums.done += 10;
                sums.consume_ms += 50;
            });
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        stats.count("T", |sums| sums.failed += 3);
        let rates = stats.rates()["T"];
        assert!((9.0..=11.0).contains(&rates.done), "{rates:?}");
        assert!((4.5..=5.5).contains(&rates.consume_time), "{rates:?}");
        assert_eq!(rates.failed_count, 3);
        tokio::time::advance(Duration::from_secs(120)).await;
        let rates = stats.rates()["T"];
        assert_eq!((rates.done, rates.failed_count), (0.0, 3));
    }
}
