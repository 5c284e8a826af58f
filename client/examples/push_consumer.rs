//! A member of a group: `cargo run -p ringmq-client --example push_consumer`, more than once at the
//! same time to see the queues being shared. Ends in good order with Ctrl-C.

use std::time::Duration;

use ringmq_client::{Client, Delivery, StartFrom, Verdict};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let client = Client::connect(&name_server).await?;
    let consumer = client
        .push_consumer("example-push")
        .subscribe("example-rust", "*")
        .start_from(StartFrom::First)
        .start(|delivery: Delivery| async move {
            for message in &delivery {
                eprintln!(
                    "{} at {}: {:?}",
                    message.queue(),
                    message.queue_offset(),
                    message.body()
                );
            }
            // `Verdict::Retry` brings the messages again, later and later.
            Verdict::Done
        })
        .await?;
    eprintln!("holds {} queues", consumer.queues().len());
    tokio::signal::ctrl_c().await?;
    // Finishes what the listener has in its hands, commits, and leaves the group.
    consumer.shutdown(Duration::from_secs(10)).await?;
    client.shutdown(Duration::from_secs(3)).await?;
    Ok(())
}
