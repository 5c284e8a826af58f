//! What monitoring sees: figures through the `metrics` facade, with the feature of that name.
//!
//! | Name | Kind | Labels |
//! |---|---|---|
//! | `ringmq_client_sends_total` | counter of messages and batches | `group`, `outcome`: `stored` or `failed` |
//! | `ringmq_client_send_seconds` | histogram: time of a send, all attempts together | `group` |
//! | `ringmq_client_send_retries_total` | counter of attempts after the first | `group` |
//! | `ringmq_client_connections_total` | counter of connections made | `addr` |
//! | `ringmq_client_pulled_total` | counter of messages that pulls brought | `group` |
//! | `ringmq_client_consumed_total` | counter of messages that a listener had | `group`, `outcome`: `done` or `failed` |
//! | `ringmq_client_consume_seconds` | histogram: time of a listener with a delivery | `group` |
//! | `ringmq_client_commits_total` | counter of offsets sent to brokers | `group`, `outcome`: `stored` or `failed` |
//! | `ringmq_client_held_queues` | gauge: queues that a member holds | `group` |
//!
//! Without the feature nothing is measured, and nothing costs time.

#[cfg(feature = "metrics")]
mod recorded {
    use std::time::Duration;

    use tokio::time::Instant;

    /// The figures of one producer, looked up once.
    #[derive(Clone)]
    pub(crate) struct Sends {
        stored: metrics::Counter,
        failed: metrics::Counter,
        retries: metrics::Counter,
        seconds: metrics::Histogram,
    }

    impl std::fmt::Debug for Sends {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Sends")
        }
    }

    impl Sends {
        pub(crate) fn new(group: &str) -> Self {
            let name = "ringmq_client_sends_total";
            let group = group.to_owned();
            Self {
                stored: metrics::counter!(name, "group" => group.clone(), "outcome" => "stored"),
                failed: metrics::counter!(name, "group" => group.clone(), "outcome" => "failed"),
                retries: metrics::counter!("ringmq_client_send_retries_total", "group" => group.clone()),
                seconds: metrics::histogram!("ringmq_client_send_seconds", "group" => group),
            }
        }

        pub(crate) fn start(&self) -> Instant {
            Instant::now()
        }

        pub(crate) fn end(&self, started: Instant, is_stored: bool) {
            let counter = if is_stored { &self.stored } else { &self.failed };
            counter.increment(1);
            self.seconds.record(started.elapsed());
        }

        pub(crate) fn retry(&self) {
            self.retries.increment(1);
        }
    }

    /// The figures of one member of a consumer group, looked up once.
    #[derive(Clone)]
    pub(crate) struct Consumption {
        pulled: metrics::Counter,
        done: metrics::Counter,
        failed: metrics::Counter,
        seconds: metrics::Histogram,
        commits: metrics::Counter,
        failed_commits: metrics::Counter,
        queues: metrics::Gauge,
    }

    impl Consumption {
        pub(crate) fn new(group: &str) -> Self {
            let (consumed, commits) =
                ("ringmq_client_consumed_total", "ringmq_client_commits_total");
            let group = || group.to_owned();
            Self {
                pulled: metrics::counter!("ringmq_client_pulled_total", "group" => group()),
                done: metrics::counter!(consumed, "group" => group(), "outcome" => "done"),
                failed: metrics::counter!(consumed, "group" => group(), "outcome" => "failed"),
                seconds: metrics::histogram!("ringmq_client_consume_seconds", "group" => group()),
                commits: metrics::counter!(commits, "group" => group(), "outcome" => "stored"),
                failed_commits: metrics::counter!(commits, "group" => group(), "outcome" => "failed"),
                queues: metrics::gauge!("ringmq_client_held_queues", "group" => group()),
            }
        }

        pub(crate) fn pulled(&self, count: usize) {
            self.pulled.increment(u64::try_from(count).unwrap_or_default());
        }

        pub(crate) fn consumed(&self, done: u64, failed: u64, time: Duration) {
            self.done.increment(done);
            self.failed.increment(failed);
            self.seconds.record(time);
        }

        pub(crate) fn committed(&self, is_stored: bool) {
            (if is_stored { &self.commits } else { &self.failed_commits }).increment(1);
        }

        pub(crate) fn holds(&self, queues: usize) {
            self.queues.set(f64::from(u32::try_from(queues).unwrap_or(u32::MAX)));
        }
    }

    pub(crate) fn connected(addr: &str) {
        metrics::counter!("ringmq_client_connections_total", "addr" => addr.to_owned())
            .increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod unrecorded {
    use std::time::Duration;

    /// Nothing.
    #[derive(Clone, Debug)]
    pub(crate) struct Sends;

    /// No time.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Unmeasured;

    impl Sends {
        pub(crate) const fn new(_group: &str) -> Self {
            Self
        }

        pub(crate) const fn start(&self) -> Unmeasured {
            Unmeasured
        }

        pub(crate) const fn end(&self, _started: Unmeasured, _is_stored: bool) {}

        pub(crate) const fn retry(&self) {}
    }

    /// Nothing.
    #[derive(Clone, Debug)]
    pub(crate) struct Consumption;

    impl Consumption {
        pub(crate) const fn new(_group: &str) -> Self {
            Self
        }

        pub(crate) const fn pulled(&self, _count: usize) {}

        pub(crate) const fn consumed(&self, _done: u64, _failed: u64, _time: Duration) {}

        pub(crate) const fn committed(&self, _is_stored: bool) {}

        pub(crate) const fn holds(&self, _queues: usize) {}
    }

    pub(crate) const fn connected(_addr: &str) {}
}

#[cfg(feature = "metrics")]
pub(crate) use recorded::{Consumption, Sends, connected};
#[cfg(not(feature = "metrics"))]
pub(crate) use unrecorded::{Consumption, Sends, connected};
