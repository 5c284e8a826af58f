//! Each order is charged once, however often its message comes:
//! `cargo run -p ringmq-client --example idempotent_consumer`.
//!
//! The store is this process's memory. Members of a group share one: with the feature `redis`, put
//! `Redis::connect("redis://127.0.0.1:6379", "MSGDEDUP:charges:").await?` in its place.

use std::time::Duration;

use ringmq_client::{
    Client, Delivery, Message, StartFrom,
    idempotent::{Memory, Once},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let client = Client::connect(&name_server).await?;
    let charge = |delivery: Delivery| async move {
        for message in &delivery {
            eprintln!("charging for {:?}", message.keys().next());
        }
    };
    let once = Once::new(charge, Memory::new(100_000))
        .scope("example-charges")
        // Longer than the longest charge, and longer than a message can come again.
        .claim_time(Duration::from_secs(60))
        .memory_time(Duration::from_secs(24 * 3600));
    let consumer = client
        .push_consumer("example-charges")
        .subscribe("example-orders", "*")
        .start_from(StartFrom::First)
        .start(once)
        .await?;

    let producer = client.producer("example-shop").start()?;
    for _ in 0..2 {
        // Sent twice, as after a timeout. The key says that it is the same order.
        producer.send(Message::new("example-orders", "order 17").key("order-17")).await?;
    }
    tokio::signal::ctrl_c().await?;
    consumer.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}
