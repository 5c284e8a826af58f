//! The binary as a user meets it: what it prints, and how it ends.

use std::{
    net::TcpListener,
    process::{Command, Output},
};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmq-admin"));
    command.args(args).env_remove("NAMESRV_ADDR").output().expect("the binary was built")
}

/// An address where nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it has an address").to_string()
}

#[track_caller]
fn check_failure(args: &[&str], code: i32, says: &str) {
    let output = run(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(stderr.contains(says), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?}");
    // What clap says about a command line has its usage below it.
    if !stderr.contains("Usage:") && !stderr.contains("--help") {
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    }
}

#[test]
fn a_server_that_is_not_there_is_named_in_one_line() {
    let addr = nobody();
    check_failure(&["topic", "list", "--namesrv", &addr], 3, &addr);
    check_failure(&["-n", &addr, "--json", "cluster", "list"], 3, "is the server running");
}

#[test]
fn wrong_command_lines_end_with_2() {
    check_failure(&["topic"], 2, "");
    check_failure(&["topic", "explode"], 2, "explode");
    check_failure(&["topic", "list", "--namesrv", "nonsense"], 2, "name server");
    check_failure(&["offset", "set", "-g", "g", "-t", "T"], 2, "--to");
    check_failure(&["message", "view", "--id", "1234"], 2, "hex digits");
}

#[test]
fn help_and_version_end_with_0() {
    for args in [["--help"], ["--version"]] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8_lossy(&output.stdout).contains("ringmq-admin"));
    }
}
