//! The admin command line against the running server.

use std::process::Command;

use ringmq_tests::{
    binary,
    folder::Folder,
    server::{Ringmq, Settings},
};

#[test]
fn a_message_can_be_sent_looked_at_and_passed_over() {
    let folder = Folder::new("admin");
    let server = Ringmq::start(&Settings::new(&folder.path().join("data")));
    let addr = server.namesrv().to_string();
    let json = |args: &str| {
        let mut command = Command::new(binary::ringmq_admin());
        let output = command.args(args.split(' ')).args(["--json", "-n", &addr]).output().unwrap();
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
