//! The `ringmq` binary as an operator meets it: what it prints, how it ends, and what it says when it
//! cannot start.
#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod common;

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use common::Folder;

fn command(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
    if !arguments.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command
        .args(["--namesrv-listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .args(arguments)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A process that is killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts it and reads what it prints until it is up.
    fn start(data: &Path, arguments: &[&str]) -> (Self, Vec<String>) {
        let mut child = command(data, arguments).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let running = Self(child);
        let mut lines = Vec::new();
        for line in out.lines() {
            let line = line.unwrap();
            let last = line.trim_start().starts_with("stop ");
            lines.push(line);
            if last {
                break;
            }
        }
        (running, lines)
    }

    fn end(mut self, signal: rustix::process::Signal) -> (Option<i32>, String) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
        let status = self.0.wait().unwrap();
        let mut log = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (status.code(), log)
    }
}

#[test]
fn a_start_says_what_runs_and_a_signal_ends_it_cleanly() {
    let folder = Folder::new();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let (running, lines) = Running::start(&folder.0, &[]);
        let text = lines.join("\n");
        let data = folder.0.display().to_string();
        for part in
            ["broker", "name server", "127.0.0.1:", &data, "1 shard", "acknowledged", "Ctrl-C"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let (code, log) = running.end(signal);
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("stopping"), "{log}");
    }
}

#[test]
fn the_start_says_what_an_acknowledgement_means_and_the_store_remembers_it() {
    let (folder, memory) = (Folder::new(), Folder::new());
    let memory_dir = memory.0.display().to_string();
    let buffers = ["--buffer-dir", &memory_dir];
    std::fs::create_dir_all(&memory.0).unwrap();
    for (ack, part) in [
        (None, "a flush to the device"),
        (Some("buffered"), "shared memory"),
        (None, "shared memory"),
        (Some("durable"), "a flush to the device"),
        (None, "a flush to the device"),
    ] {
        let flag = ack.map(|ack| ["--ack", ack]);
        let arguments = [&buffers[..], flag.as_ref().map_or(&[][..], |flag| flag)].concat();
        let (running, lines) = Running::start(&folder.0, &arguments);
        let line = lines.iter().find(|line| line.contains("acknowledged")).unwrap();
        assert!(line.contains(part), "{ack:?}: {line}");
        let is_buffered = part == "shared memory";
        let files = std::fs::read_dir(&memory.0).unwrap().count();
        assert_eq!(files, usize::from(is_buffered), "files in memory, {ack:?}");
        let (code, log) = running.end(rustix::process::Signal::TERM);
        assert_eq!(code, Some(0), "{log}");
        assert_eq!(std::fs::read_dir(&memory.0).unwrap().count(), 0, "nothing is left");
    }
}

#[test]
fn signals_that_come_together_are_one_wish() {
    let folder = Folder::new();
    let (running, _) = Running::start(&folder.0, &[]);
    let pid = rustix::process::Pid::from_child(&running.0);
    for _ in 0..3 {
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }
    let (code, log) = running.end(rustix::process::Signal::TERM);
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn the_log_is_json_where_asked_for() {
    let folder = Folder::new();
    let mut child = command(&folder.0, &["--log-format", "json"]).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let running = Running(child);
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    assert!(line.starts_with('{') && line.ends_with("}\n"), "{line}");
    drop(running);
}

#[track_caller]
fn check_refused(output: &Output, parts: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in parts {
        assert!(last.contains(part), "{part} is missing in {last}");
    }
}

#[test]
fn what_keeps_it_from_starting_is_said_in_one_line() {
    let folder = Folder::new();
    let nowhere = folder.0.join("nowhere").display().to_string();
    let output = command(&folder.0, &["--ack", "buffered", "--buffer-dir", &nowhere]).output();
    check_refused(&output.unwrap(), &["shared memory", &nowhere, "acknowledge durable"]);

    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = busy.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq"));
    let output = command.args(["broker", "--listen", &addr, "--data"]).arg(&folder.0).output();
    check_refused(&output.unwrap(), &[&addr, "in use", "--listen"]);

    std::fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let output = self::command(&file.join("data"), &[]).output().unwrap();
    check_refused(&output, &["file", "create"]);
    let output = self::command(&folder.0, &["-c", "/does/not/exist"]).output().unwrap();
    check_refused(&output, &["/does/not/exist", "cannot be read"]);
    std::fs::write(&file, "brokerName=a\nlistenPort=70000\n").unwrap();
    let output = self::command(&folder.0, &["-c", file.to_str().unwrap()]).output().unwrap();
    check_refused(&output, &["file:2: listenPort=70000: takes 0 to 65535"]);
}

#[test]
fn threads_that_would_have_no_shard_are_named() {
    let folder = Folder::new();
    for (threads, note) in [("3", true), ("2", false), ("1", false)] {
        let (running, lines) = Running::start(&folder.0, &["--shards", "2", "--threads", threads]);
        let said = lines.iter().any(|line| line.contains("3 threads asked for, 2 run"));
        assert_eq!(said, note, "{threads} threads: {lines:?}");
        assert_eq!(running.end(rustix::process::Signal::TERM).0, Some(0));
    }
}

#[test]
fn a_vip_port_that_cannot_be_had_is_a_warning() {
    let folder = Folder::new();
    let bind = |port: u16| TcpListener::bind(("127.0.0.1", port));
    // Below the ports that the system gives to whoever asks for any.
    let (busy, listen) = (22_000..26_000)
        .step_by(3)
        .find_map(|port| Some((bind(port).ok()?, bind(port + 2).ok()?.local_addr().ok()?)))
        .unwrap();
    let taken = busy.local_addr().unwrap();
    let (running, _) = Running::start(&folder.0, &["--listen", &listen.to_string()]);
    let (code, log) = running.end(rustix::process::Signal::TERM);
    assert_eq!(code, Some(0), "{log}");
    let warned = log.lines().find(|line| line.contains("VIP")).expect("a warning");
    assert!(warned.contains(&taken.to_string()) && warned.contains("WARN"), "{warned}");
}

#[test]
fn what_was_fixed_when_the_store_was_made_cannot_be_asked_for_otherwise() {
    let folder = Folder::new();
    let conf = folder.0.with_extension("conf");
    let made = ["--block-size", "4096", "--shards", "2"];
    let (running, _) = Running::start(&folder.0, &made);
    assert_eq!(running.end(rustix::process::Signal::TERM).0, Some(0));

    let output = command(&folder.0, &["--block-size", "512"]).output().unwrap();
    check_refused(&output, &["block size", "4096", "512", "another folder"]);
    let output = command(&folder.0, &["--shards", "3"]).output().unwrap();
    check_refused(&output, &["2 shards", "3", "another folder"]);
    std::fs::write(&conf, "segmentSize=1048576\n").unwrap();
    let output = command(&folder.0, &["-c", conf.to_str().unwrap()]).output().unwrap();
    std::fs::remove_file(&conf).unwrap();
    check_refused(&output, &["segments of 268435456 bytes", "1048576", "segmentSize"]);

    for same in [&made[..], &[]] {
        let (running, _) = Running::start(&folder.0, same);
        assert_eq!(running.end(rustix::process::Signal::TERM).0, Some(0));
    }
}

#[test]
fn a_folder_that_is_in_use_is_refused() {
    let folder = Folder::new();
    let (running, _) = Running::start(&folder.0, &[]);
    let output = command(&folder.0, &[]).output().unwrap();
    check_refused(&output, &["held by another process"]);
    assert_eq!(running.end(rustix::process::Signal::TERM).0, Some(0));
}

#[test]
fn a_killed_process_leaves_a_store_that_opens() {
    let folder = Folder::new();
    for _ in 0..3 {
        let (running, lines) = Running::start(&folder.0, &[]);
        assert!(lines.len() > 3);
        assert_eq!(running.end(rustix::process::Signal::KILL).0, None);
    }
}
