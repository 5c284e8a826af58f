//! Measures one push consumer with default settings on a topic that has a backlog:
//! `cargo run --release -p ringmq-client --example consume_throughput -- NAME_SERVER TOPIC SECONDS`.
//!
//! Prints messages per second, and this process's CPU time per message (Linux).
#![expect(clippy::print_stdout, reason = "printing is what the example is for")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ringmq_client::{Client, Delivery, StartFrom};
use tokio::time::{Instant, sleep};

/// CPU time of this process so far: user and system, in ticks of 10 ms.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let name_server = args.next().unwrap_or_else(|| "127.0.0.1:9876".into());
    let topic = args.next().unwrap_or_else(|| "Throughput".into());
    let seconds: u64 = args.next().map_or(Ok(5), |seconds| seconds.parse())?;
    let client = Client::connect(&name_server).await?;
    let (count, group) =
        (Arc::new(AtomicU64::new(0)), format!("throughput-{}", std::process::id()));
    let counted = Arc::clone(&count);
    let builder = client.push_consumer(&group).subscribe(&topic, "*").start_from(StartFrom::First);
    let _consumer = builder
        .start(move |delivery: Delivery| {
            let len = u64::try_from(delivery.len()).unwrap_or_default();
            counted.fetch_add(len, Ordering::Relaxed);
            std::future::ready(())
        })
        .await?;
    while count.load(Ordering::Relaxed) == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_millis(500)).await;
    let (start, before, cpu) = (Instant::now(), count.load(Ordering::Relaxed), cpu_ticks());
    sleep(Duration::from_secs(seconds)).await;
    let count = u32::try_from(count.load(Ordering::Relaxed) - before)?;
    let cpu_us = 10_000.0 * f64::from(u32::try_from(cpu_ticks() - cpu)?);
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    println!("push consumer: {rate:.0} messages/s, {:.2} us CPU each", cpu_us / f64::from(count));
    Ok(())
}
