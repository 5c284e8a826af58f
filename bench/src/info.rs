//! `info`: what a broker and its topic look like right now.

use std::io;

use clap::Args;
use serde_json::json;

use crate::admin::Admin;
use crate::cli::Target;
use crate::measure::Probe;

/// Prints where the broker is, its process and the offsets of the topic.
#[derive(Args, Clone, Debug)]
pub(crate) struct Info {
    #[command(flatten)]
    target: Target,
}

impl Info {
    /// Runs the subcommand. Creates nothing.
    ///
    /// # Errors
    ///
    /// Connection errors.
    pub(crate) fn run(&self) -> io::Result<()> {
        let broker = self.target.broker_addr()?;
        let mut admin = Admin::connect(broker)?;
        let pid = self.target.pid_of(broker)?;
        let memory = Probe { pid }.rss_anon_kib();
        let mut text = format!(
            "broker {broker}   pid {}   anonymous memory {} KiB   topic {}",
            pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
            memory.map_or_else(|| "unknown".to_owned(), |kib| kib.to_string()),
            self.target.topic,
        );
        let mut queues = Vec::new();
        for queue in 0..self.target.queues {
            let min = admin.min_offset(&self.target.topic, queue)?;
            let max = admin.max_offset(&self.target.topic, queue)?;
            text.push_str(&format!("\n  queue {queue}: {min} to {max}"));
            queues.push(json!({ "queue": queue, "min": min, "max": max }));
        }
        let result = json!({
            "command": "info",
            "broker": broker.to_string(),
            "pid": pid,
            "rss_anon_kib": memory,
            "topic": self.target.topic,
            "queues": queues,
        });
        self.target.report(&text, &result)
    }
}
