//! `ringmq-admin`: looks at and changes a RingMQ or Apache RocketMQ cluster, through a name server.
//!
//! Start at `cli` for what it understands; each command is a file in `commands` that asks through
//! `ringmq-client` and gives back a `Report`, which `report` prints as aligned text or JSON.
//!
//! Exit codes: 0 done, 1 refused or not found, 2 wrong command line, 3 a server was not reached.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use ringmq_client::{Client, Error};

use self::{cli::Cli, failure::Failure, report::Report};

mod cli;
mod commands;
mod failure;
mod report;
mod time;

fn main() -> ExitCode {
    // Wrong command lines end here, with clap's text and exit code 2.
    let cli = Cli::parse();
    match run(&cli).and_then(|report| print(&report, cli.json)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "ringmq-admin: {failure}");
            failure.exit_code()
        }
    }
}

fn run(cli: &Cli) -> Result<Report, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::Output)?.block_on(async {
        let builder = Client::builder(&cli.namesrv).call_timeout(cli.timeout());
        let client = builder.connect().await?;
        let report = commands::run(&client, &cli.command).await;
        // What is left to say to servers does not change the outcome.
        let _ = client.shutdown(cli.timeout()).await;
        report
    })
}

fn print(report: &Report, as_json: bool) -> Result<(), Failure> {
    let text = if as_json { report.to_json() } else { report.to_text() };
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever reads has seen enough, as in `| head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(Failure::Output),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}
