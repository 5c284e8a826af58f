//! Each queue in its order: `cargo run -p ringmq-client --example ordered_consumer`.

use std::time::Duration;

use ringmq_client::{Client, Delivery, OrderedVerdict, StartFrom};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let client = Client::connect(&name_server).await?;
    let consumer = client
        .push_consumer("example-ordered")
        .subscribe("example-rust", "*")
        .start_from(StartFrom::First)
        // After five deliveries that failed a message goes to the dead letters, and its queue on.
        .retries_max(5)
        .start_ordered(|delivery: Delivery| async move {
            for message in &delivery {
                if message.body().is_empty() {
                    // Comes again after a second, before anything behind it.
                    return OrderedVerdict::Suspend;
                }
                eprintln!("{} at {}", message.queue(), message.queue_offset());
            }
            OrderedVerdict::Done
        })
        .await?;
    tokio::signal::ctrl_c().await?;
    consumer.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}
