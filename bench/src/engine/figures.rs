//! What one run has taken: time, processor time, latencies.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::clock::{Clock, Nanos};

/// A moment of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lap(Nanos);

/// The figures of one run.
pub(crate) struct Figures {
    clock: Clock,
    cpu: Duration,
    latency: Histogram<u64>,
    /// Records, or operations.
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
}

/// Processor time of all threads of this process, those of the kernel that work for it too.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

impl Figures {
    /// Starts the clocks.
    pub(crate) fn start() -> Self {
        Self {
            clock: Clock::start(),
            cpu: cpu_time(),
            latency: Histogram::new_with_bounds(100, 60_000_000_000, 3)
                .expect("the bounds are a valid range"),
            count: 0,
            bytes: 0,
            seconds: 0.0,
            cpu_seconds: 0.0,
        }
    }

    /// Now.
    pub(crate) fn lap(&self) -> Lap {
        Lap(self.clock.now())
    }

    /// Seconds since the start.
    pub(crate) fn elapsed(&self) -> f64 {
        seconds(self.clock.now().get())
    }

    /// Notes that `count` records or operations took from `since` until now.
    pub(crate) fn took(&mut self, since: Lap, count: u64) {
        self.latency.saturating_record_n(self.clock.now().since(since.0), count);
    }

    /// Stops the clocks.
    pub(crate) fn end(&mut self, count: u64, bytes: u64) {
        self.seconds = self.elapsed();
        self.cpu_seconds = cpu_time().saturating_sub(self.cpu).as_secs_f64();
        (self.count, self.bytes) = (count, bytes);
    }

    /// Bytes a second.
    pub(crate) fn byte_rate(&self) -> f64 {
        per(self.bytes, self.seconds)
    }

    /// Records or operations a second.
    pub(crate) fn rate(&self) -> f64 {
        per(self.count, self.seconds)
    }

    /// Microseconds of processor time for each record.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.cpu_seconds * 1e6 / float(self.count.max(1))
    }

    /// A quantile of the latencies in microseconds.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        float(self.latency.value_at_quantile(quantile)) / 1e3
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "count": self.count,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "per_second": self.rate(),
            "bytes_per_second": self.byte_rate(),
            "cpu_us_per_record": self.cpu_us(),
            "p50_us": self.quantile_us(0.5),
            "p99_us": self.quantile_us(0.99),
            "p99_9_us": self.quantile_us(0.999),
        })
    }
}

fn per(count: u64, seconds: f64) -> f64 {
    float(count) / seconds.max(1e-9)
}

fn seconds(nanos: u64) -> f64 {
    float(nanos) / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}
