//! What clients leave behind that start and end 300 times, against a real server. The only test in
//! its process, since it counts what belongs to the process.

#![allow(clippy::unwrap_used, reason = "an error here is a failed test")]

use std::{fs, time::Duration};

use ringmq_client::{Client, Delivery, Message, StartFrom, admin::NewTopic};
use ringmq_tests::{
    folder::Folder,
    server::{Ringmq, Settings},
    wait::PATIENCE,
};
use tokio::time::{sleep, timeout};

const CYCLES: usize = 300;
/// From here on the process must not grow.
const WARM: usize = 20;
/// What memory may differ by: pages that the allocator keeps are not ours to count. Unit: KiB.
const SLACK_KIB: usize = 4 * 1024;

/// One life: a third ends in good order, a third is dropped as it is, a third fails to start.
async fn live(namesrv: &str, round: usize) {
    let client = Client::connect(namesrv).await.unwrap();
    let producer = client.producer("p").start().unwrap();
    producer.send(Message::new("cycles", "x")).await.unwrap();
    let group = format!("readers-{}", round % 10);
    match round % 3 {
        0 => {
            let builder = client.pull_consumer(&group).topic("cycles").topic("absent");
            assert!(builder.start().await.is_err());
            let builder = client.push_consumer(&group).subscribe("cycles", "a > ").concurrency(0);
            assert!(builder.start(|_: Delivery| std::future::ready(())).await.is_err());
            assert!(Client::connect("127.0.0.1:1").await.is_err());
        }
        kind => {
            let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
            let builder = client.push_consumer(&group).subscribe("cycles", "*");
            let consumer = builder.start_from(StartFrom::First).start(move |delivery: Delivery| {
                // The life may be over.
                let _ = sender.send(delivery.len());
                std::future::ready(())
            });
            let consumer = consumer.await.unwrap();
            timeout(PATIENCE, received.recv()).await.unwrap().unwrap();
            if kind == 1 {
                consumer.shutdown(PATIENCE).await.unwrap();
                producer.shutdown(PATIENCE).await.unwrap();
                client.shutdown(PATIENCE).await.unwrap();
            }
        }
    }
}

/// What belongs to this process: tasks, open files, threads.
fn owned() -> (usize, usize, usize) {
    let count = |folder| fs::read_dir(folder).unwrap().count();
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    (tasks, count("/proc/self/fd"), count("/proc/self/task"))
}

/// Memory of this process that is in use. Unit: KiB.
fn resident_kib() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn three_hundred_starts_and_ends_leave_nothing_behind() {
    let folder = Folder::new("client-cycles");
    let server = Ringmq::start(&Settings::new(&folder.path().join("data")));
    let namesrv = server.namesrv().to_string();
    let admin = Client::connect(&namesrv).await.unwrap();
    let broker = server.broker().to_string();
    admin.admin().create_topic(&broker, &NewTopic::new("cycles", 4)).await.unwrap();
    admin.shutdown(PATIENCE).await.unwrap();
    for round in 0..WARM {
        live(&namesrv, round).await;
    }
    sleep(Duration::from_secs(1)).await;
    let (before, kib_before) = (owned(), resident_kib());
    for round in WARM..CYCLES {
        live(&namesrv, round).await;
    }
    // Those that were dropped end by themselves.
    let ended = async {
        while owned() > before {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let is_ended = timeout(PATIENCE, ended).await.is_ok();
    let (after, kib_after) = (owned(), resident_kib());
    println!(
        "(tasks, files, threads) {before:?}, then {after:?}; {kib_before} KiB, then {kib_after}"
    );
    assert!(is_ended, "(tasks, files, threads) {before:?}, then {after:?}");
    assert!(kib_after <= kib_before + SLACK_KIB, "{kib_before} KiB, then {kib_after} KiB");
}
