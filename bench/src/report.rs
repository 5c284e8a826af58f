//! `report`: from the results of a comparison to one table.
//!
//! A comparison leaves one JSON file for each run, named `CASE.BROKER.REPETITION.json`. This reads
//! them, takes medians, sets the brokers against each other and against the bars that the project
//! has set itself, and writes a markdown and a JSON file.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use crate::cli::say;
use crate::measure;

/// Makes one table out of a comparison's results.
#[derive(Args, Clone, Debug)]
pub(crate) struct Report {
    /// Folder with the results
    #[arg(long)]
    dir: PathBuf,
    /// Where to write; `.md` and `.json` are appended
    #[arg(long)]
    out: PathBuf,
    /// Commit that was measured
    #[arg(long, default_value = "unknown")]
    commit: String,
    /// Line that says what was run; may be given several times
    #[arg(long)]
    note: Vec<String>,
}

/// What RingMQ has to reach in a case.
#[derive(Clone, Copy, Debug)]
enum Bar {
    /// Its messages a second, as a multiple of the other's.
    RateTimes(f64),
    /// Its p99, as a part of the other's.
    P99Part(f64),
    /// Its p99 in milliseconds.
    P99Below(f64),
    /// Flushes of the device for 10,000 sends, and bytes of log for each.
    Durable { flushes: f64, log_bytes: f64 },
    /// A busy load's rate beside the disturbance, as a part of its rate alone, and the growth of
    /// the broker's anonymous memory in MiB.
    Undisturbed { part: f64, memory_mib: f64 },
    /// No answer that is no frame, no failure of the healthy client, and from the first tenth of
    /// the run to its end this growth of anonymous memory in MiB.
    Unharmed { memory_mib: f64 },
    /// None: for information.
    None,
}

/// Cases in the order of the table: name, what it is, bar.
const CASES: &[(&str, &str, Bar)] = &[
    ("1x1", "1 connection, 1 in flight", Bar::None),
    ("32x1", "32 connections, 1 in flight", Bar::RateTimes(1.5)),
    ("32x8", "32 connections, 8 in flight", Bar::RateTimes(4.0)),
    ("32x64", "32 connections, 64 in flight", Bar::RateTimes(8.0)),
    ("batch32", "32 connections, 4 in flight, batches of 32", Bar::RateTimes(4.0)),
    ("pull", "pull of a backlog, 8 queues, 32 a pull", Bar::RateTimes(3.0)),
    ("open30k", "open loop, 30,000 a second", Bar::P99Part(0.1)),
    ("e2e", "end to end, 1,000 a second", Bar::P99Below(2.0)),
    ("e2e-tag", "end to end, 1,000 a second, by tag", Bar::P99Below(2.0)),
    (
        "durable",
        "10,000 single 200-byte messages, 1 x 1",
        Bar::Durable { flushes: 9_500.0, log_bytes: 1024.0 },
    ),
    (
        "idle",
        "5,000 connections with a parked pull",
        Bar::Undisturbed { part: 0.9, memory_mib: 100.0 },
    ),
    (
        "stall",
        "20 consumers that stop reading",
        Bar::Undisturbed { part: 0.9, memory_mib: f64::INFINITY },
    ),
    ("fuzz", "mutated frames over 50 connections", Bar::Unharmed { memory_mib: 16.0 }),
];

/// The broker under test and the one that it is compared with.
const SUBJECT: &str = "ringmq";
const PEER: &str = "apache";

/// All runs of one case with one broker.
type Runs = Vec<Value>;

impl Report {
    /// Runs the subcommand.
    ///
    /// # Errors
    ///
    /// Files that cannot be read or written, and results that are not JSON.
    pub(crate) fn run(&self) -> io::Result<()> {
        let results = read_results(&self.dir)?;
        let mut markdown = format!(
            "# RingMQ and Apache RocketMQ, same generator, same machine\n\n\
             Commit {}. {}.\nMedians; the range of the repetitions in brackets.\n\n",
            self.commit,
            machine()
        );
        for note in &self.note {
            markdown.push_str(&format!("- {note}\n"));
        }
        markdown.push_str(
            "\n| Case | Broker | messages/s | p50 / p99 / p99.9 ms | broker CPU us/msg | errors |\n\
             |---|---|---|---|---|---|\n",
        );
        let mut verdicts = String::new();
        let mut cases = Vec::new();
        for &(name, what, bar) in CASES {
            let runs = |broker: &str| results.get(&(name.to_owned(), broker.to_owned()));
            for broker in [PEER, SUBJECT] {
                if let Some(runs) = runs(broker) {
                    markdown.push_str(&row(what, broker, runs));
                }
            }
            let verdict = runs(SUBJECT).and_then(|subject| judge(bar, subject, runs(PEER)));
            if let Some(verdict) = &verdict {
                let met = if verdict.met { "met" } else { "**missed**" };
                let line = format!("| {what} | {} | {} | {met} |\n", verdict.got, verdict.bar);
                verdicts.push_str(&line);
            }
            cases.push(json!({
                "case": name,
                "what": what,
                "apache": runs(PEER),
                "ringmq": runs(SUBJECT),
                "got": verdict.as_ref().map(|verdict| verdict.got.clone()),
                "bar": verdict.as_ref().map(|verdict| verdict.bar.clone()),
                "met": verdict.as_ref().map(|verdict| verdict.met),
            }));
        }
        if !verdicts.is_empty() {
            markdown.push_str("\n| Case | RingMQ | bar | |\n|---|---|---|---|\n");
            markdown.push_str(&verdicts);
        }
        say(&markdown)?;
        let result = json!({
            "commit": self.commit,
            "machine": machine(),
            "notes": self.note,
            "cases": cases,
        });
        fs::write(self.out.with_extension("md"), &markdown)?;
        fs::write(self.out.with_extension("json"), format!("{result:#}\n"))
    }
}

fn read_results(dir: &Path) -> io::Result<BTreeMap<(String, String), Runs>> {
    let mut results: BTreeMap<(String, String), Runs> = BTreeMap::new();
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|file| Ok(file?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let parts: Vec<&str> = name.split('.').collect();
        let &[case, broker, _repetition, "json"] = parts.as_slice() else { continue };
        let value = serde_json::from_str(&fs::read_to_string(&path)?)
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
        results.entry((case.to_owned(), broker.to_owned())).or_default().push(value);
    }
    Ok(results)
}

/// The values of one field over all runs, sorted.
fn values(runs: &Runs, pointer: &str) -> Vec<f64> {
    let mut values: Vec<f64> =
        runs.iter().filter_map(|run| run.pointer(pointer)?.as_f64()).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(runs: &Runs, pointer: &str) -> Option<f64> {
    let values = values(runs, pointer);
    (!values.is_empty()).then(|| measure::median(values))
}

fn row(what: &str, broker: &str, runs: &Runs) -> String {
    let rate = median(runs, "/messages_per_second").map_or_else(
        || "-".to_owned(),
        |rate| {
            let all = values(runs, "/messages_per_second");
            let (low, high) = (all.first().unwrap_or(&rate), all.last().unwrap_or(&rate));
            match all.len() {
                1 => format!("{rate:.0}"),
                _ => format!("{rate:.0} [{low:.0} to {high:.0}]"),
            }
        },
    );
    let number = |pointer: &str, digits: usize| {
        median(runs, pointer).map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let errors: Vec<String> = runs
        .iter()
        .filter_map(|run| run.get("errors")?.as_object())
        .flatten()
        .map(|(code, count)| format!("{code}: {count}"))
        .collect();
    format!(
        "| {what} | {broker} | {rate} | {} / {} / {} | {} | {} |\n",
        number("/latency/p50_ms", 3),
        number("/latency/p99_ms", 3),
        number("/latency/p99_9_ms", 3),
        number("/costs/broker_cpu_us_per_message", 2),
        errors.join(", "),
    )
}

struct Verdict {
    got: String,
    bar: String,
    met: bool,
}

/// Sets a case against its bar; `None` where something was not measured or there is no bar.
fn judge(bar: Bar, subject: &Runs, peer: Option<&Runs>) -> Option<Verdict> {
    let ratio = |pointer: &str| Some(median(subject, pointer)? / median(peer?, pointer)?);
    Some(match bar {
        Bar::None => return None,
        Bar::RateTimes(times) => {
            let got = ratio("/messages_per_second")?;
            Verdict {
                got: format!("{got:.2} times"),
                bar: format!("at least {times} times"),
                met: got >= times,
            }
        }
        Bar::P99Part(part) => {
            let got = ratio("/latency/p99_ms")?;
            Verdict {
                got: format!("p99 {got:.3} of Apache's"),
                bar: format!("at most {part}"),
                met: got <= part,
            }
        }
        Bar::P99Below(limit) => {
            let got = median(subject, "/latency/p99_ms")?;
            Verdict {
                got: format!("p99 {got:.3} ms"),
                bar: format!("below {limit} ms"),
                met: got < limit,
            }
        }
        Bar::Durable { flushes, log_bytes } => judge_durable(flushes, log_bytes, subject)?,
        Bar::Undisturbed { part, memory_mib } => {
            let got = median(subject, "/busy_part")?;
            let growth = median(subject, "/memory_growth_mib").unwrap_or_default();
            Verdict {
                got: format!("{got:.3} of the undisturbed rate, {growth:.1} MiB"),
                bar: format!("at least {part}, at most {memory_mib} MiB"),
                met: got >= part && growth <= memory_mib,
            }
        }
        Bar::Unharmed { memory_mib } => judge_unharmed(memory_mib, subject)?,
    })
}

fn judge_durable(flushes: f64, log_bytes: f64, subject: &Runs) -> Option<Verdict> {
    let got_flushes = median(subject, "/costs/device_flushes")?;
    let got_bytes = median(subject, "/log_bytes_per_message")?;
    Some(Verdict {
        got: format!("{got_flushes:.0} flushes, {got_bytes:.0} bytes of log a message"),
        bar: format!("at least {flushes} and at most {log_bytes}"),
        met: got_flushes >= flushes && got_bytes <= log_bytes,
    })
}

fn judge_unharmed(memory_mib: f64, subject: &Runs) -> Option<Verdict> {
    let mut growth_mib: f64 = 0.0;
    let mut failures = 0.0;
    for run in subject {
        let memory: Vec<f64> =
            run.get("rss_anon_kib")?.as_array()?.iter().filter_map(Value::as_f64).collect();
        growth_mib = growth_mib.max((memory.last()? - memory.first()?) / 1024.0);
        failures += run.get("malformed_answers")?.as_f64()?;
        let errors = run.pointer("/healthy_beside/errors")?.as_object()?;
        failures += errors.values().filter_map(Value::as_f64).sum::<f64>();
    }
    Some(Verdict {
        got: format!("{failures} failures, {growth_mib:.1} MiB"),
        bar: format!("none, at most {memory_mib} MiB"),
        met: failures == 0.0 && growth_mib <= memory_mib,
    })
}

/// Processor, cores and kernel of this machine.
pub(crate) fn machine() -> String {
    let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu_info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let cores = cpu_info.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores ({model}), Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(rates: &[f64]) -> Runs {
        rates.iter().map(|rate| json!({ "messages_per_second": rate })).collect()
    }

    #[test]
    fn the_median_is_the_middle_run() {
        let pointer = "/messages_per_second";
        assert_eq!(median(&runs(&[9.0, 1.0, 5.0]), pointer), Some(5.0));
        assert_eq!(median(&runs(&[4.0, 1.0]), pointer), Some(2.5));
        assert_eq!(median(&runs(&[]), pointer), None);
    }

    #[test]
    fn a_bar_is_met_or_missed_by_the_medians() {
        let peer = runs(&[10.0, 11.0, 9.0]);
        for (rate, met) in [(79.0, false), (80.0, true)] {
            let verdict = judge(Bar::RateTimes(8.0), &runs(&[rate]), Some(&peer)).unwrap();
            assert_eq!(verdict.met, met, "{rate}");
        }
        assert!(judge(Bar::RateTimes(8.0), &peer, None).is_none());
    }
}
