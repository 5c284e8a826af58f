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

/// Runs against the cluster whose name server `RINGMQ_TEST_NAMESRV` names.
#[test]
#[ignore = "needs a running cluster"]
fn a_message_can_be_sent_looked_at_and_passed_over() {
    let addr = std::env::var("RINGMQ_TEST_NAMESRV").expect("it names a cluster");
    let json = |args: &str| {
        let args: Vec<_> = args.split(' ').chain(["--json", "-n", &addr]).collect();
        let output = run(&args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {stderr}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("it is JSON")
    };
    let topic = format!("admin-{}", std::process::id());
    assert_eq!(json(&format!("topic create {topic} --queues 1"))[0]["topic"], *topic);
    let names = json("topic list");
    assert!(names.as_array().unwrap().iter().any(|row| row["topic"] == *topic));
    assert_eq!(json(&format!("topic route {topic}"))[0]["perm"], "rw");

    let sent = json(&format!("message send -t {topic} -b hello --tag t --key k --count 3"));
    let id = sent[1]["offset_id"].as_str().unwrap();
    let message = json(&format!("message view --id {id}"));
    assert_eq!((&message["body"], &message["tag"]), (&"hello".into(), &"t".into()));
    assert_eq!(message["queue_offset"], sent[1]["queue_offset"]);
    let stats = json(&format!("topic stats {topic}"));
    let count: i64 =
        stats.as_array().unwrap().iter().map(|q| q["messages"].as_i64().unwrap()).sum();
    assert_eq!(count, 3);

    json(&format!("offset set -g admin-group -t {topic} --to 1"));
    assert_eq!(json(&format!("offset query -g admin-group -t {topic}"))[0]["lag"], 2);
    json(&format!("offset set -g admin-group -t {topic} --to-last"));
    assert_eq!(json(&format!("offset query -g admin-group -t {topic}"))[0]["lag"], 0);
    let brokers = json("cluster list");
    assert!(brokers.as_array().unwrap().iter().all(|row| row["address"].is_string()));
}
