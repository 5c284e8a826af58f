//! One producer, or one push consumer, of the `rocketmq-client-rust` crate with default settings:
//! the scenarios of the Rust client's examples `throughput` and `consume_throughput`.
//!
//! ```text
//! rocketmq-rust-peer produce NAME_SERVER IN_FLIGHT SECONDS [BODY]
//! rocketmq-rust-peer consume NAME_SERVER TOPIC SECONDS
//! ```
#![recursion_limit = "512"]

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rocketmq_client_rust::{
    ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus, DefaultMQProducer, DefaultMQPushConsumer, MQPushConsumer,
    MessageListenerConcurrently,
};
use rocketmq_model::common::{
    consumer::consume_from_where::ConsumeFromWhere,
    message::{message_ext::MessageExt, message_single::Message},
};
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_runtime::RuntimeOwner;

/// How long a case runs before it is measured.
const WARM_UP: Duration = Duration::from_secs(1);

/// CPU time of this process so far: user and system, in ticks of 10 ms.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Measures how fast a count rises.
async fn measure(name: &str, count: &AtomicU64, seconds: u64) {
    tokio::time::sleep(WARM_UP).await;
    let (start, before, cpu) = (Instant::now(), count.load(Ordering::Relaxed), cpu_ticks());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let count = (count.load(Ordering::Relaxed) - before) as f64;
    let cpu_us = 10_000.0 * (cpu_ticks() - cpu) as f64;
    let rate = count / start.elapsed().as_secs_f64();
    println!("{name}: {rate:.0} messages/s, {:.2} us CPU each", cpu_us / count);
}

async fn produce(runtime: Arc<ClientRuntime>, args: &[String]) -> Result<(), Box<dyn Error>> {
    let (in_flight, seconds): (usize, u64) = (args[1].parse()?, args[2].parse()?);
    let body_len: usize = args.get(3).map_or(Ok(1024), |len| len.parse())?;
    let mut producer = DefaultMQProducer::builder(runtime)
        .producer_group("throughput")
        .name_server_addr(args[0].clone())
        .build();
    producer.start().await?;
    let producer = Arc::new(producer);
    let (sent, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..in_flight)
        .map(|_| {
            let (producer, sent) = (Arc::clone(&producer), Arc::clone(&sent));
            let (failed, is_over) = (Arc::clone(&failed), Arc::clone(&is_over));
            tokio::spawn(async move {
                let body = vec![b'x'; body_len];
                while !is_over.load(Ordering::Relaxed) {
                    match producer.send(Message::new("Throughput", &body)).await {
                        Ok(_) => sent.fetch_add(1, Ordering::Relaxed),
                        Err(error) => {
                            let before = failed.fetch_add(1, Ordering::Relaxed);
                            if before == 0 {
                                eprintln!("first failure: {error:?}");
                            }
                            before
                        }
                    };
                }
            })
        })
        .collect();
    measure(&format!("{in_flight} in flight"), &sent, seconds).await;
    is_over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await?;
    }
    println!("{} failed", failed.load(Ordering::Relaxed));
    Ok(())
}

struct Counting(Arc<AtomicU64>);

impl MessageListenerConcurrently for Counting {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        self.0.fetch_add(messages.len() as u64, Ordering::Relaxed);
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}

async fn consume(runtime: Arc<ClientRuntime>, args: &[String]) -> Result<(), Box<dyn Error>> {
    let count = Arc::new(AtomicU64::new(0));
    let mut consumer = DefaultMQPushConsumer::builder(runtime)
        .consumer_group(format!("throughput-{}", std::process::id()))
        .name_server_addr(args[0].clone())
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .build();
    consumer.subscribe(&args[1], "*").await?;
    consumer.register_message_listener_concurrently(Counting(Arc::clone(&count)));
    consumer.start().await?;
    while count.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    measure("push consumer", &count, args[2].parse()?).await;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let owner = RuntimeOwner::new()?;
    let telemetry = TelemetryRuntimeGuard::noop();
    let context = owner.root_context().component("throughput");
    let runtime = ClientRuntime::try_new(context, ClientRuntimeConfig::default(), telemetry.handle())?;
    owner.block_on(async {
        match args.first().map(String::as_str) {
            Some("produce") => produce(runtime, &args[1..]).await,
            Some("consume") => consume(runtime, &args[1..]).await,
            _ => Err("usage: rocketmq-rust-peer produce|consume NAME_SERVER ...".into()),
        }
    })?;
    // What the client would do at shutdown is not measured.
    std::process::exit(0);
}
