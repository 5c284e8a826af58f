//! Sends ten messages: `cargo run -p ringmq-client --example producer [NAME SERVER]`.
#![expect(clippy::print_stdout, reason = "printing is what the example is for")]

use std::time::Duration;

use ringmq_client::{Client, Message};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let client = Client::connect(&name_server).await?;
    let producer = client.producer("example-producer").start()?;
    for n in 0..10 {
        let message = Message::new("TopicTest", format!("hello {n}")).tag("TagA");
        let receipt = producer.send(message).await?;
        println!("{} at {} of {}", receipt.message_id, receipt.queue_offset, receipt.queue);
    }
    producer.shutdown(Duration::from_secs(3)).await?;
    client.shutdown(Duration::from_secs(3)).await?;
    Ok(())
}
