//! The command line.

use std::time::{Duration, SystemTime};

use clap::{ArgGroup, Args, Parser, Subcommand};
use ringmq_client::admin::OffsetMessageId;

use crate::time;

/// Looks at and changes a RingMQ or Apache RocketMQ cluster.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit codes: 0 done, 1 refused or not found, 2 wrong command line, \
    3 a server was not reached."
)]
pub(crate) struct Cli {
    /// Name servers, as host:port;host:port
    #[arg(long, short, global = true, env = "NAMESRV_ADDR", default_value = "127.0.0.1:9876")]
    pub(crate) namesrv: String,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Milliseconds that a server has to answer
    #[arg(long, global = true, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    timeout_ms: u64,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    pub(crate) const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Brokers and the clusters that they form
    #[command(subcommand)]
    Cluster(Cluster),
    /// Topics and their queues
    #[command(subcommand)]
    Topic(Topic),
    /// How far consumer groups have read
    #[command(subcommand)]
    Offset(Offset),
    /// Single messages
    #[command(subcommand)]
    Message(Message),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// All brokers, with cluster, id and address
    List,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Topic {
    /// Names of all topics
    List,
    /// Create a topic, or change it
    Create(CreateTopic),
    /// Where the topic is: brokers, queues and permissions
    Route {
        /// The topic
        topic: String,
    },
    /// First and next offset of each queue
    Stats {
        /// The topic
        topic: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct CreateTopic {
    /// The topic
    pub(crate) topic: String,
    /// Queues on each broker
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(i32).range(1..=65_536))]
    pub(crate) queues: i32,
    /// What clients may do: r, w or rw
    #[arg(long, default_value = "rw", value_parser = parse_perm)]
    pub(crate) perm: i32,
    /// Only on brokers of this cluster
    #[arg(long)]
    pub(crate) cluster: Option<String>,
    /// Only on the broker with this name
    #[arg(long)]
    pub(crate) broker: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Offset {
    /// Committed offset and lag of each queue
    Query {
        /// The consumer group
        #[arg(long, short)]
        group: String,
        /// The topic
        #[arg(long, short)]
        topic: String,
    },
    /// Set the committed offset; stop the group's members before
    Set(SetOffset),
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("target").required(true))]
pub(crate) struct SetOffset {
    /// The consumer group
    #[arg(long, short)]
    pub(crate) group: String,
    /// The topic
    #[arg(long, short)]
    pub(crate) topic: String,
    /// Only on the broker with this name
    #[arg(long)]
    pub(crate) broker: Option<String>,
    /// Only the queue with this number
    #[arg(long)]
    pub(crate) queue: Option<i32>,
    /// To this offset, in messages
    #[arg(long, group = "target", value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) to: Option<i64>,
    /// To the first message of each queue
    #[arg(long, group = "target")]
    pub(crate) to_first: bool,
    /// Behind the last message of each queue
    #[arg(long, group = "target")]
    pub(crate) to_last: bool,
    /// To the first message stored at this time (milliseconds since 1970, or 2026-01-31T12:00:00Z)
    #[arg(long, group = "target", value_parser = time::parse)]
    pub(crate) to_time: Option<SystemTime>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Message {
    /// Show a message
    View {
        /// Id that the broker gave it: 32 hex digits, 56 with IPv6
        #[arg(long, value_parser = parse_id)]
        id: OffsetMessageId,
    },
    /// Send a message, to try things out
    Send(SendMessage),
}

#[derive(Args, Debug)]
pub(crate) struct SendMessage {
    /// The topic
    #[arg(long, short)]
    pub(crate) topic: String,
    /// The body
    #[arg(long, short)]
    pub(crate) body: String,
    /// The tag
    #[arg(long)]
    pub(crate) tag: Option<String>,
    /// A key; may be given several times
    #[arg(long)]
    pub(crate) key: Vec<String>,
    /// A property name=value; may be given several times
    #[arg(long, value_parser = parse_property)]
    pub(crate) property: Vec<(String, String)>,
    /// Delay level, 1 to 18
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..=18))]
    pub(crate) delay_level: Option<i32>,
    /// How many of them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// The producer group
    #[arg(long, default_value = "ringmq-admin")]
    pub(crate) group: String,
}

fn parse_perm(text: &str) -> Result<i32, String> {
    match text {
        "r" => Ok(4),
        "w" => Ok(2),
        "rw" | "wr" => Ok(6),
        _ => Err("expected r, w or rw".into()),
    }
}

fn parse_id(text: &str) -> Result<OffsetMessageId, String> {
    OffsetMessageId::parse(text)
        .ok_or_else(|| "expected 32 or 56 hex digits that end in a port and an offset".into())
}

fn parse_property(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected name=value")?;
    Ok((name.into(), value.into()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[track_caller]
    fn refused(args: &str) {
        let parsed = Cli::try_parse_from(format!("ringmq-admin {args}").split(' '));
        assert!(parsed.is_err(), "{args}");
    }

    #[test]
    fn wrong_arguments_are_refused_before_anything_is_asked() {
        refused("offset set -g g -t T");
        refused("offset set -g g -t T --to 1 --to-first");
        refused("offset set -g g -t T --to -1");
        refused("topic create T --queues 0");
        refused("topic create T --perm x");
        refused("message view --id 7F00");
        refused("message send -t T -b x --property novalue");
        refused("topic stats");
    }

    #[test]
    fn what_is_set_globally_may_stand_anywhere() {
        let args = "ringmq-admin topic stats T --namesrv h:1 --json --timeout-ms 7";
        let cli = Cli::try_parse_from(args.split(' ')).unwrap();
        assert_eq!((cli.namesrv.as_str(), cli.json), ("h:1", true));
        assert_eq!(cli.timeout(), Duration::from_millis(7));
    }
}
