//! The text of `/metrics`.
//!
//! A family is a help line, a type line and its samples, without another family in between. Label
//! values are numbers, or names of groups, which have no character that needs escaping.
//!
//! Source: "Exposition formats" of Prometheus' documentation, text format 0.0.4.

use std::fmt::{Display, Write};

use ringmq_engine::ShardStats;

use super::{BrokerFigures, ShardFigures, Silent};

/// A counter of each shard: name, help, and where it is.
type ShardCounter = (&'static str, &'static str, fn(&ShardStats) -> u64);

const SHARD_COUNTERS: [ShardCounter; 12] = [
    ("messages_in_total", "Messages stored.", |stats| stats.appended),
    ("message_bytes_in_total", "Bytes of the messages stored.", |stats| stats.appended_bytes),
    ("messages_out_total", "Messages handed out by pulls.", |stats| stats.read),
    ("message_bytes_out_total", "Bytes of the messages handed out.", |stats| stats.read_bytes),
    ("records_total", "Records of the log, facts and the engine's own included.", |stats| {
        stats.records
    }),
    ("flushes_total", "Groups of records written and flushed, one write each.", |stats| {
        stats.groups
    }),
    ("log_bytes_total", "Bytes of log written, padding included.", |stats| stats.log_bytes),
    ("cold_reads_total", "Reads of the log that went to the device.", |stats| stats.cold_reads),
    ("cold_read_bytes_total", "Bytes that these reads asked for.", |stats| stats.cold_bytes),
    ("checkpoints_total", "Checkpoints written.", |stats| stats.checkpoints),
    ("segments_recycled_total", "Segments of the log given up for age or budget.", |stats| {
        stats.segments_recycled
    }),
    ("unreadable_records_total", "Records found damaged.", |stats| stats.unreadable),
];

/// The page. A broker that gives no figures has none on it, and is not ready.
pub(super) fn metrics(figures: Result<Option<&BrokerFigures>, &Silent>) -> String {
    let mut page = Page(String::new());
    let poisoned = |figures: &BrokerFigures| figures.shards.iter().any(|s| s.poison.is_some());
    let ready = figures.is_ok_and(|figures| !figures.is_some_and(poisoned));
    page.gauge("ready", "Whether every shard takes writes.", u8::from(ready));
    if let Ok(Some(figures)) = figures {
        page.of_broker(figures);
    }
    page.0
}

struct Page(String);

impl Page {
    fn of_broker(&mut self, figures: &BrokerFigures) {
        let BrokerFigures { shards, connections, stalled, parked_pulls, topics, consumer_groups } =
            figures;
        self.gauge("connections", "Connections of clients.", connections);
        self.family(
            "stalled_connections_total",
            "counter",
            "Connections closed because their socket took no answers.",
        );
        self.sample("stalled_connections_total", "", stalled);
        self.gauge("parked_pulls", "Pulls that wait for messages.", parked_pulls);
        self.gauge("topics", "Topics, those of the system included.", topics);
        self.gauge("consumer_groups", "Groups configured or with members.", consumer_groups);
        for (name, help, value) in SHARD_COUNTERS {
            self.of_shards(name, "counter", help, shards, |shard| value(&shard.stats));
        }
        let help = "Whether the shard has stopped to take writes.";
        self.of_shards("shard_poisoned", "gauge", help, shards, |shard| {
            u64::from(shard.poison.is_some())
        });
        self.of_disk(shards);
        let help = "Queues ever opened.";
        self.of_shards("queues", "gauge", help, shards, |shard| {
            u64::try_from(shard.queues).unwrap_or(u64::MAX)
        });
        let help = "Most chunks of recent groups that readers held at a time.";
        self.of_shards("pinned_chunks_max", "gauge", help, shards, |shard| {
            shard.stats.pinned_chunks
        });
    }

    fn of_disk(&mut self, shards: &[ShardFigures]) {
        let help = "Bytes that the shard may take of the disk.";
        self.of_shards("disk_budget_bytes", "gauge", help, shards, |shard| shard.disk.budget_bytes);
        let help = "Bytes that the shard takes of the disk.";
        self.of_shards("disk_used_bytes", "gauge", help, shards, |shard| shard.disk.used_bytes);
        let name = "lost_unread_messages_total";
        self.family(name, "counter", "Messages given up before the consumer group had read them.");
        for shard in shards {
            for (group, messages) in &shard.lost_unread {
                let labels = format!("{{shard=\"{}\",group=\"{group}\"}}", shard.shard);
                self.sample(name, &labels, messages);
            }
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, "", value);
    }

    fn of_shards(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        shards: &[ShardFigures],
        value: impl Fn(&ShardFigures) -> u64,
    ) {
        self.family(name, kind, help);
        for shard in shards {
            self.sample(name, &format!("{{shard=\"{}\"}}", shard.shard), value(shard));
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP ringmq_{name} {help}\n# TYPE ringmq_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "ringmq_{name}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_announced_once_and_stands_together() {
        let shard = |shard| ShardFigures { shard, ..ShardFigures::default() };
        let figures = BrokerFigures { shards: vec![shard(0), shard(1)], ..Default::default() };
        let text = metrics(Ok(Some(&figures)));
        let mut families = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                families.push(rest.split(' ').next().unwrap());
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                assert_eq!(families.last(), Some(&name), "{line}");
            }
        }
        let mut once = families.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), families.len());
        assert!(text.contains("ringmq_queues{shard=\"1\"} 0\n"), "{text}");
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn readiness_follows_the_shards() {
        let poisoned = |poison: Option<&str>| BrokerFigures {
            shards: vec![ShardFigures { poison: poison.map(str::to_owned), ..Default::default() }],
            ..BrokerFigures::default()
        };
        for (figures, ready) in [
            (Ok(None), 1),
            (Ok(Some(&poisoned(None))), 1),
            (Ok(Some(&poisoned(Some("EIO")))), 0),
            (Err(&Silent("stopping")), 0),
        ] {
            let text = metrics(figures);
            assert!(text.contains(&format!("\nringmq_ready {ready}\n")), "{text}");
        }
    }
}
