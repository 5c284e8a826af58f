//! The real server as a child process.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::mpsc,
    thread,
};

use crate::{
    binary,
    wait::{PATIENCE, poll},
};

/// Which of the three kinds of process to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// Name server and broker in one.
    Standalone,
    /// A name server.
    Namesrv,
    /// A broker that registers with the name server at this address.
    Broker(SocketAddr),
}

/// What to start; a standalone server on free ports unless told otherwise.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Kind of process.
    pub form: Form,
    /// Folder of the store.
    pub data: PathBuf,
    /// Where the broker listens.
    pub listen: String,
    /// Where the name server listens.
    pub namesrv_listen: String,
    /// More command-line arguments.
    pub arguments: Vec<String>,
    /// Lines of a `broker.conf`.
    pub conf: Vec<String>,
    /// A shell command that ends in running `"$0" "$@"`, which is the server.
    pub wrapper: Option<&'static str>,
}

impl Settings {
    /// A standalone server with its store in `data`.
    pub fn new(data: &Path) -> Self {
        let any = "127.0.0.1:0".to_owned();
        Self {
            form: Form::Standalone,
            data: data.to_owned(),
            listen: any.clone(),
            namesrv_listen: any,
            arguments: Vec::new(),
            conf: Vec::new(),
            wrapper: None,
        }
    }

    fn command(&self) -> Command {
        let mut command = match self.wrapper {
            None => Command::new(binary::ringmq()),
            Some(script) => {
                let mut shell = Command::new("sh");
                shell.arg("-c").arg(script).arg(binary::ringmq());
                shell
            }
        };
        match &self.form {
            Form::Standalone => command.arg("standalone"),
            Form::Namesrv => command.arg("namesrv"),
            Form::Broker(namesrv) => command.arg("broker").arg("-n").arg(namesrv.to_string()),
        };
        command.arg("--data").arg(&self.data);
        command.args(["--listen", &self.listen, "--namesrv-listen", &self.namesrv_listen]);
        command.args(&self.arguments);
        if !self.conf.is_empty() {
            let mut file: OsString = self.data.clone().into();
            file.push(".conf");
            fs::write(&file, self.conf.join("\n"))
                .expect("the folder beside the store is writable");
            command.arg("-c").arg(file);
        }
        if env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "warn");
        }
        command.stdin(Stdio::null());
        command
    }

    /// Runs a server that is expected to refuse to start, and returns what it said.
    ///
    /// # Panics
    ///
    /// If it does start, or does neither.
    pub fn refused(&self) -> Output {
        let mut command = self.command();
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was just built");
        let lines = lines_of(child.stdout.take().expect("it is piped"));
        // A server that refuses closes its output; one that starts says so.
        loop {
            match lines.recv_timeout(PATIENCE) {
                Ok(line) if !line.contains("is running") => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                started_or_stuck => {
                    let _ = child.kill();
                    panic!("the server neither starts nor refuses: {started_or_stuck:?}");
                }
            }
        }
        child.wait_with_output().expect("the child is ours")
    }
}

/// A running server; killed when dropped.
#[derive(Debug)]
pub struct Ringmq {
    child: Child,
    broker: Option<SocketAddr>,
    namesrv: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
}

impl Ringmq {
    /// Starts a server and waits until it says that it runs.
    ///
    /// # Panics
    ///
    /// If it ends instead, or says nothing.
    pub fn start(settings: &Settings) -> Self {
        let mut child =
            settings.command().stdout(Stdio::piped()).spawn().expect("the binary was just built");
        let lines = lines_of(child.stdout.take().expect("it is piped"));
        let mut server = Self { child, broker: None, namesrv: None, metrics: None };
        loop {
            let line = lines.recv_timeout(PATIENCE).expect("the server says that it runs");
            server.broker = server.broker.or_else(|| address_after(&line, "broker "));
            server.namesrv = server.namesrv.or_else(|| address_after(&line, "name server "));
            server.metrics = server.metrics.or_else(|| address_after(&line, "metrics "));
            // How to stop it is the last thing that it says.
            if line.trim_start().starts_with("stop ") {
                return server;
            }
        }
    }

    /// Where the broker listens.
    ///
    /// # Panics
    ///
    /// If this process is none.
    pub fn broker(&self) -> SocketAddr {
        self.broker.expect("the process runs a broker")
    }

    /// Where the name server listens.
    ///
    /// # Panics
    ///
    /// If this process is none.
    pub fn namesrv(&self) -> SocketAddr {
        self.namesrv.expect("the process runs a name server")
    }

    /// Where it serves figures for monitoring.
    ///
    /// # Panics
    ///
    /// If it was not told to.
    pub fn metrics(&self) -> SocketAddr {
        self.metrics.expect("the process serves metrics")
    }

    /// The number by which the system knows the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process as a crash does.
    ///
    /// # Panics
    ///
    /// If there is no process to end.
    pub fn kill(mut self) {
        assert_eq!(self.child.try_wait().expect("the child is ours"), None, "it ended by itself");
        self.child.kill().expect("the child is ours and runs");
        self.child.wait().expect("the child is ours");
    }

    /// Asks the process to end, and tells whether it did so in good order.
    ///
    /// # Panics
    ///
    /// If there is no process to ask, or it does not end.
    pub fn stop(mut self) -> bool {
        let asked = Command::new("kill").arg(self.child.id().to_string()).status();
        assert!(asked.is_ok_and(|status| status.success()), "`kill` reaches the child");
        let ended = poll(|| self.child.try_wait().expect("the child is ours"));
        ended.expect("a server ends when it is asked to").success()
    }

    /// Whether the process still runs.
    ///
    /// # Panics
    ///
    /// If the system does not know the child.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("the child is ours").is_none()
    }
}

impl Drop for Ringmq {
    fn drop(&mut self) {
        // Both fail when the test has ended the process itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a child's output as they come. The channel closes with the output; the reader goes
/// on to the end, so that the child never meets a full pipe.
fn lines_of(output: ChildStdout) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        while matches!(output.read_line(&mut line), Ok(1..)) {
            if sender.send(std::mem::take(&mut line)).is_err() {
                let _ = output.read_to_end(&mut Vec::new());
            }
        }
    });
    lines
}

/// The address in `  broker        127.0.0.1:10911 (...` or `  metrics       http://...:9090/metrics`.
fn address_after(line: &str, name: &str) -> Option<SocketAddr> {
    let rest = line.trim_start().strip_prefix(name)?;
    let word = rest.split_whitespace().next()?;
    word.trim_start_matches("http://").trim_end_matches("/metrics").parse().ok()
}
