//! Prints ten messages: `cargo run -p ringmq-client --example consumer [NAME SERVER]`.
#![expect(clippy::print_stdout, reason = "printing is what the example is for")]

use std::time::Duration;

use ringmq_client::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let client = Client::connect(&name_server).await?;
    let mut consumer = client.pull_consumer("example-consumer").topic("TopicTest").start().await?;
    for _ in 0..10 {
        let message = tokio::select! {
            message = consumer.next() => message?,
            _ = tokio::signal::ctrl_c() => break,
        };
        println!("{} {}", message.message_id(), String::from_utf8_lossy(message.body()));
    }
    consumer.shutdown(Duration::from_secs(3)).await?;
    client.shutdown(Duration::from_secs(3)).await?;
    Ok(())
}
