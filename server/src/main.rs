//! The `ringmq` binary: reads the configuration, starts the server, waits for a signal.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use ringmq::{
    config::{Config, LogFormat, cli::Cli},
    server::Server,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr(cli.flags.log_format);
    end_with_the_first_panic();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            // To people and to whoever only reads what a program prints last.
            let _ = writeln!(io::stderr(), "ringmq: {line}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), String> {
    let config = Config::load(cli).map_err(|error| error.to_string())?;
    for note in &config.notes {
        tracing::warn!("{note}");
    }
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot wait for signals: {error}"))?;
    // Signals that arrive during the start end it as soon as it is over.
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        let wait = |kind| signal(kind).map_err(|error| format!("cannot wait for signals: {error}"));
        (wait(SignalKind::interrupt())?, wait(SignalKind::terminate())?)
    };
    let server = Server::start(&config).map_err(|error| error.to_string())?;
    tell(&server, config.log_format);
    let failed = runtime.block_on(async {
        tokio::select! {
            _ = interrupt.recv() => false,
            _ = terminate.recv() => false,
            () = server.failed() => true,
        }
    });
    tracing::info!("stopping");
    let stop = std::thread::spawn(move || server.stop());
    let lines = runtime.block_on(async {
        let stopped = async {
            while !stop.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = stopped => {}
            () = another(&mut interrupt, &mut terminate) => {
                return Err("stopped by a second signal".to_owned());
            }
        }
        stop.join().map_err(|_| "the stop failed".to_owned())
    })?;
    if let Some(first) = lines.first() {
        return Err(first.clone());
    }
    if failed { Err("a shard's ring failed, see the log".to_owned()) } else { Ok(()) }
}

/// A signal of somebody who does not want to wait. What arrives within a second of the first signal
/// is the same wish: some programs signal a process and then its group.
async fn another(interrupt: &mut Signal, terminate: &mut Signal) {
    const SAME: Duration = Duration::from_secs(1);
    let begin = ringmq::clock::instant();
    while begin.elapsed() < SAME {
        tokio::select! {
            () = tokio::time::sleep(SAME.saturating_sub(begin.elapsed())) => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Prints what the process is and does.
fn tell(server: &Server, format: LogFormat) {
    match format {
        LogFormat::Json => {
            for (name, value) in server.about() {
                tracing::info!(name, value, "running");
            }
        }
        LogFormat::Text => {
            let mut out = io::stdout().lock();
            let version = env!("CARGO_PKG_VERSION");
            // A closed output must not end a broker.
            let _ = writeln!(out, "ringmq {version} is running");
            for (name, value) in server.about() {
                let _ = writeln!(out, "  {name:<13} {value}");
            }
            let _ = writeln!(
                out,
                "  {:<13} Ctrl-C, or SIGTERM to process {}",
                "stop",
                std::process::id()
            );
            let _ = out.flush();
        }
    }
}

fn log_to_stderr(format: LogFormat) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,ringmq=info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        // A line that cannot be written is dropped: the default tells of it where it could not be
        // written either, and panics.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}

/// A panic is a broken invariant. The other threads would go on with it, so the process ends; what
/// was acknowledged is on the device.
fn end_with_the_first_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        std::process::exit(101);
    }));
}

/// Connections need descriptors; the usual soft limit is low for programs that use `select`.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}
