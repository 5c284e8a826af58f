//! What a run counts, and what it costs the broker.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::clock::Nanos;
use crate::procfs::{self, BlockCounters};

/// Longest latency that is told apart from longer ones.
const LATENCY_MAX: Duration = Duration::from_secs(120);

/// Code under which connections that ended early are counted.
pub(crate) const CONNECTION_CLOSED: i32 = -1;
/// Code under which answers that nobody asked for, or that are no frames, are counted.
pub(crate) const UNEXPECTED: i32 = -2;
/// Code under which sends of an open loop are counted that found no room to wait for an answer.
pub(crate) const NOT_SENT: i32 = -3;
/// Code under which requests are counted whose answer did not come in time.
pub(crate) const UNANSWERED: i32 = -4;

/// Counters and latencies of one window.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    latency: Histogram<u64>,
    /// Messages that succeeded.
    pub(crate) messages: u64,
    /// Requests that succeeded.
    pub(crate) requests: u64,
    /// Bytes of bodies (send) or records (pull) that succeeded.
    pub(crate) bytes: u64,
    /// Failures by response code; below zero are this tool's own.
    pub(crate) errors: BTreeMap<i32, u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let max = u64::try_from(LATENCY_MAX.as_nanos()).unwrap_or(u64::MAX);
        let latency = Histogram::new_with_bounds(1_000, max, 3).expect("the bounds are valid");
        Self { latency, messages: 0, requests: 0, bytes: 0, errors: BTreeMap::new() }
    }
}

impl Tally {
    /// Records a latency in nanoseconds.
    pub(crate) fn record(&mut self, latency_ns: u64) {
        self.latency.saturating_record(latency_ns);
    }

    /// Counts a failure.
    pub(crate) fn fail(&mut self, code: i32) {
        self.fail_many(code, 1);
    }

    /// Counts failures.
    pub(crate) fn fail_many(&mut self, code: i32, count: u64) {
        if count > 0 {
            *self.errors.entry(code).or_default() += count;
        }
    }

    /// Counts what the other one counted as failures.
    pub(crate) fn fail_as(&mut self, other: &Self) {
        other.errors.iter().for_each(|(&code, &count)| self.fail_many(code, count));
    }

    /// A latency quantile in milliseconds.
    pub(crate) fn quantile_ms(&self, quantile: f64) -> f64 {
        nanos_to_ms(self.latency.value_at_quantile(quantile))
    }

    /// The latencies as JSON, in milliseconds.
    pub(crate) fn latency_json(&self) -> Value {
        json!({
            "p50_ms": self.quantile_ms(0.5),
            "p99_ms": self.quantile_ms(0.99),
            "p99_9_ms": self.quantile_ms(0.999),
            "max_ms": nanos_to_ms(self.latency.max()),
            "mean_ms": self.latency.mean() / 1e6,
            "count": self.latency.len(),
        })
    }

    /// Failures by code as JSON, with names for the tool's own.
    pub(crate) fn errors_json(&self) -> Value {
        self.errors.iter().map(|(&code, &count)| (code_name(code), Value::from(count))).collect()
    }
}

fn code_name(code: i32) -> String {
    match code {
        CONNECTION_CLOSED => "closed".to_owned(),
        UNEXPECTED => "unexpected".to_owned(),
        NOT_SENT => "not_sent".to_owned(),
        UNANSWERED => "unanswered".to_owned(),
        code => code.to_string(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^53 ns")]
fn nanos_to_ms(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

/// Where the costs of a run are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probe {
    /// The broker's process, when it is known.
    pub(crate) pid: Option<u32>,
}

/// The costs at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    at: Nanos,
    cpu: Option<Duration>,
    own_cpu: Option<Duration>,
    rss_anon_kib: Option<u64>,
    block: BlockCounters,
}

impl Probe {
    /// Reads the counters now.
    pub(crate) fn sample(&self, at: Nanos) -> Sample {
        Sample {
            at,
            cpu: self.pid.and_then(|pid| procfs::cpu_time(pid).ok()),
            own_cpu: procfs::cpu_time(std::process::id()).ok(),
            rss_anon_kib: self.rss_anon_kib(),
            block: procfs::block_counters().unwrap_or_default(),
        }
    }

    /// The broker's anonymous memory in KiB.
    pub(crate) fn rss_anon_kib(&self) -> Option<u64> {
        self.pid.and_then(|pid| procfs::rss_anon_kib(pid).ok())
    }
}

/// The costs between two samples, for `messages` messages, as JSON.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(crate) fn costs_json(before: &Sample, after: &Sample, messages: u64) -> Value {
    let seconds = after.at.since(before.at) as f64 / 1e9;
    let spent = |before: Option<Duration>, after: Option<Duration>| {
        Some(after?.saturating_sub(before?).as_secs_f64())
    };
    let cpu = spent(before.cpu, after.cpu);
    let own_cpu = spent(before.own_cpu, after.own_cpu);
    json!({
        "seconds": seconds,
        "broker_cpu_us_per_message":
            cpu.filter(|_| messages > 0).map(|cpu| cpu * 1e6 / messages as f64),
        "broker_cores": cpu.filter(|_| seconds > 0.0).map(|cpu| cpu / seconds),
        "generator_cores": own_cpu.filter(|_| seconds > 0.0).map(|cpu| cpu / seconds),
        "broker_rss_anon_mib_before": before.rss_anon_kib.map(|kib| kib as f64 / 1024.0),
        "broker_rss_anon_mib_after": after.rss_anon_kib.map(|kib| kib as f64 / 1024.0),
        "device_flushes": after.block.flushes.saturating_sub(before.block.flushes),
        "device_writes": after.block.writes.saturating_sub(before.block.writes),
        "device_mib_written":
            (after.block.sectors_written.saturating_sub(before.block.sectors_written)) as f64
                / 2048.0,
    })
}

/// Messages (or bytes) a second.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(crate) fn per_second(count: u64, from: Nanos, until: Nanos) -> f64 {
    count as f64 * 1e9 / until.since(from).max(1) as f64
}

/// The middle value; the mean of the two middle ones of an even number.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2).copied().unwrap_or_default();
    let lower = values.get((values.len().max(1) - 1) / 2).copied().unwrap_or_default();
    f64::midpoint(lower, upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_an_even_number_lies_in_the_middle() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median([]).abs() < 1e-9);
    }
}
