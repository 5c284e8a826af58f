//! Messages as a stream: `cargo run -p ringmq-client --example pull_stream`.

use std::{pin::pin, time::Duration};

use futures_util::TryStreamExt;
use ringmq_client::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let client = Client::connect(&name_server).await?;
    // `subscribe` in place of `topic` shares the queues with other members of the group.
    let mut consumer = client.pull_consumer("example-stream").topic("example-rust").start().await?;
    {
        let mut messages = pin!(consumer.messages());
        let mut count = 0;
        while let Some(message) = messages.try_next().await? {
            eprintln!("{}: {:?}", message.message_id(), message.body());
            count += 1;
            if count == 10 {
                break;
            }
        }
    }
    // From the start again, for one queue.
    if let Some((queue, _)) = consumer.assignment().first().cloned() {
        let begin = consumer.min_offset(&queue).await?;
        consumer.seek(&queue, begin).await?;
        let again = consumer.poll(32, Duration::from_secs(5)).await?;
        eprintln!("{} messages once more", again.len());
    }
    consumer.shutdown(Duration::from_secs(3)).await?;
    Ok(())
}
