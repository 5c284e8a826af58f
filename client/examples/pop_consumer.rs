//! More members than queues, with a broker of Apache RocketMQ 5.x:
//! `cargo run -p ringmq-client --example pop_consumer`.

use std::time::Duration;

use ringmq_client::{Client, PopFrom};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let client = Client::connect(&name_server).await?;
    let builder = client.pop_consumer("example-pop").subscribe("example-rust", "*");
    let mut consumer = builder.start_from(PopFrom::First).start().await?;
    loop {
        let popped = tokio::select! {
            popped = consumer.receive(32, Duration::from_secs(15)) => popped?,
            _ = tokio::signal::ctrl_c() => break,
        };
        for message in popped {
            eprintln!("{:?}, mine for {:?}", message.message().body(), message.time_left());
            // Without this it comes again, to any member, when its time is over.
            consumer.ack(&message).await?;
        }
    }
    consumer.shutdown(Duration::from_secs(3)).await;
    Ok(())
}
