//! Every member gets every message: `cargo run -p ringmq-client --example broadcasting`.

use std::time::Duration;

use ringmq_client::{Client, Delivery};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The name tells this process from others of the machine, also after a restart: its offsets
    // are kept under it, in `.ringmq_offsets` of the user's home.
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let builder = Client::builder(&name_server).instance_name("cache-1");
    let client = builder.connect().await?;
    let consumer = client
        .push_consumer("example-caches")
        .subscribe("example-rust", "*")
        .broadcasting()
        .start(|delivery: Delivery| async move {
            for message in &delivery {
                eprintln!("forget {:?}", message.keys().next());
            }
        })
        .await?;
    tokio::signal::ctrl_c().await?;
    consumer.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}
