//! `ringmq-bench`: drives RingMQ and Apache RocketMQ alike over the remoting protocol.
//!
//! One thread, one event loop, frames that are built once and patched: the generator shares the
//! machine with the broker that it measures, so it has to be cheap. Every subcommand is a set of
//! actors ([`load`], [`consume`], [`fuzz`]) run side by side in a [`reactor`]; [`engine`] measures the
//! storage engine alone, in this process.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod admin;
mod busy;
mod cli;
mod clock;
mod conn;
mod consume;
mod e2e;
mod engine;
mod frame;
mod fuzz;
mod idle;
mod info;
mod load;
mod measure;
mod mutate;
mod procfs;
mod produce;
mod pull;
mod reactor;
mod report;
mod scan;
mod sink;
mod stall;

/// Load generator for brokers that speak the RocketMQ remoting protocol.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Send messages, closed or open loop
    Produce(produce::Produce),
    /// Drain a backlog
    Pull(pull::Pull),
    /// Latency from send to receive with an idle consumer
    E2e(e2e::EndToEnd),
    /// Memory and effect of thousands of waiting consumers
    Idle(idle::Idle),
    /// Effect of consumers that stop reading in the middle of an answer
    Stall(stall::Stall),
    /// Mutated frames, with a healthy client beside them
    Fuzz(fuzz::Fuzz),
    /// Where the broker is, its process, the topic's offsets
    Info(info::Info),
    /// Answer everything with success, to see what the generator itself can do
    Sink(sink::Sink),
    /// What the storage engine does, beside the device's own ceiling
    Engine(engine::Engine),
    /// One table out of the results of a comparison
    Report(report::Report),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Produce(command) => command.run(),
        Command::Pull(command) => command.run(),
        Command::E2e(command) => command.run(),
        Command::Idle(command) => command.run(),
        Command::Stall(command) => command.run(),
        Command::Fuzz(command) => command.run(),
        Command::Info(command) => command.run(),
        Command::Sink(command) => command.run(),
        Command::Engine(command) => command.run(),
        Command::Report(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do when even standard error is closed.
            let _ = writeln!(std::io::stderr(), "ringmq-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
