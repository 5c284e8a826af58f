//! What monitoring sees: figures through the `metrics` facade, with the feature of that name.
//!
//! | Name | Kind | Labels |
//! |---|---|---|
//! | `ringmq_client_sends_total` | counter of messages and batches | `group`, `outcome`: `stored` or `failed` |
//! | `ringmq_client_send_seconds` | histogram: time of a send, all attempts together | `group` |
//! | `ringmq_client_send_retries_total` | counter of attempts after the first | `group` |
//! | `ringmq_client_connections_total` | counter of connections made | `addr` |
//!
//! Without the feature nothing is measured, and nothing costs time.

#[cfg(feature = "metrics")]
mod recorded {
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

    pub(crate) fn connected(addr: &str) {
        metrics::counter!("ringmq_client_connections_total", "addr" => addr.to_owned())
            .increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod unrecorded {
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

    pub(crate) const fn connected(_addr: &str) {}
}

#[cfg(feature = "metrics")]
pub(crate) use recorded::{Sends, connected};
#[cfg(not(feature = "metrics"))]
pub(crate) use unrecorded::{Sends, connected};
