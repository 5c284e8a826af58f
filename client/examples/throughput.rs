//! Measures one producer with default settings:
//! `cargo run --release -p ringmq-client --example throughput -- NAME_SERVER IN_FLIGHT SECONDS [BODY] [batch]`.
//!
//! Prints messages per second, and this process's CPU time per message (Linux).
#![expect(clippy::print_stdout, reason = "printing is what the example is for")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ringmq_client::{Batching, Client, Message};
use tokio::time::Instant;

/// CPU time of this process so far: user and system, in ticks of 10 ms.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| -> usize {
        args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(default)
    };
    let name_server = args.first().map_or("127.0.0.1:9876", String::as_str);
    let (in_flight, seconds, body_len) = (number(1, 64), number(2, 5), number(3, 1024));
    let client = Client::connect(name_server).await?;
    let mut builder = client.producer("throughput");
    if args.iter().any(|arg| arg == "batch") {
        builder = builder.batching(Batching::new());
    }
    let producer = builder.start()?;
    let (sent, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (topic, body): (Arc<str>, _) = ("Throughput".into(), Bytes::from(vec![b'x'; body_len]));
    let tasks: Vec<_> = (0..in_flight)
        .map(|_| {
            let (producer, topic, body) = (producer.clone(), Arc::clone(&topic), body.clone());
            let (sent, is_over) = (Arc::clone(&sent), Arc::clone(&is_over));
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    producer.send(Message::new(Arc::clone(&topic), body.clone())).await?;
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, ringmq_client::Error>(())
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (start, before, cpu) = (Instant::now(), sent.load(Ordering::Relaxed), cpu_ticks());
    tokio::time::sleep(Duration::from_secs(u64::try_from(seconds)?)).await;
    let count = u32::try_from(sent.load(Ordering::Relaxed) - before)?;
    let cpu_us = 10_000.0 * f64::from(u32::try_from(cpu_ticks() - cpu)?);
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    println!(
        "{in_flight} in flight: {rate:.0} messages/s, {:.2} us CPU each",
        cpu_us / f64::from(count)
    );
    Ok(())
}
