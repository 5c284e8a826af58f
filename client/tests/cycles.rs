//! What is left behind by clients that start and end.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod fake;

use std::time::Duration;

use fake::{Fake, Reaction, answer, ok, refuse, route, stored};
use ringmq_client::{Client, Message};

/// A life of a client: one third ends cleanly, one third is dropped, one third fails to start.
async fn live(fake: &Fake, round: usize) {
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("g").start().unwrap();
    producer.send(Message::new("T", "x")).await.unwrap();
    let kind = round % 3;
    if kind == 0 {
        assert!(client.pull_consumer("g").topic("T").topic("Absent").start().await.is_err());
        return;
    }
    let consumer = client.pull_consumer("g").topic("T").start().await.unwrap();
    if kind == 1 {
        consumer.shutdown(Duration::from_secs(5)).await.unwrap();
        producer.shutdown(Duration::from_secs(5)).await.unwrap();
        client.shutdown(Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test]
async fn clients_that_ended_leave_no_task_and_no_connection() {
    let fake = Fake::start(|own, seen| match (seen.code, seen.ext("topic")) {
        (105, "Absent") => refuse(17),
        (105, _) => route(&[("a", own, 4)]),
        (310, _) => stored(seen),
        (11, _) => Reaction::Silence,
        (14 | 30 | 31, _) => answer(0, &[("offset", "0")], b""),
        _ => ok(),
    })
    .await;
    let metrics = tokio::runtime::Handle::current().metrics();
    // The fake's own tasks end with their connections, so the count covers both sides.
    let before = metrics.num_alive_tasks();
    for round in 0..60 {
        live(&fake, round).await;
    }
    let ended = async {
        while metrics.num_alive_tasks() > before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
    assert!(ended.is_ok(), "{} tasks, {before} before", metrics.num_alive_tasks());
}
