//! The Rust client as a runner of the interop tests (tests/interop/README.md): a consumer that
//! prints what it gets, and ends in good order with its standard input.

#![expect(clippy::print_stdout, reason = "events of a runner are its output")]

use std::{collections::HashMap, error::Error, io::Read, time::Duration};

use md5::{Digest, Md5};
use ringmq_client::{Client, Delivery, ReceivedMessage, StartFrom};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let options: HashMap<_, _> = arguments
        .iter()
        .skip(1)
        .zip(arguments.iter().skip(2))
        .filter_map(|(name, value)| Some((name.strip_prefix("--")?, value.as_str())))
        .collect();
    let option = |name| options.get(name).copied().ok_or_else(|| format!("--{name} is missing"));
    match arguments.first().map(String::as_str) {
        Some("consume") => {}
        other => return Err(format!("unknown command {other:?}").into()),
    }
    let client = Client::builder(option("namesrv")?).instance_name(option("member")?);
    let client = client.connect().await?;
    let builder = client.push_consumer(option("group")?).start_from(StartFrom::First);
    let tags = options.get("tags").copied().unwrap_or("*");
    // One at a time, so that the order of the printed lines is the order of consumption.
    let builder = builder.subscribe(option("topic")?, tags).concurrency(1);
    let consumer = builder
        .start(|delivery: Delivery| async move {
            for message in delivery {
                emit(&received(&message));
            }
        })
        .await?;
    emit(&json!({ "event": "started" }));
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    ended.await??;
    consumer.shutdown(Duration::from_secs(10)).await?;
    emit(&json!({ "event": "stopped" }));
    Ok(())
}

fn emit(event: &Value) {
    println!("{event}");
}

fn received(message: &ReceivedMessage) -> Value {
    let digest = Md5::digest(message.body());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "event": "received",
        "key": message.keys().next(),
        "tag": message.tag(),
        "length": message.body().len(),
        "digest": digest,
        "broker": message.queue().broker_name(),
        "queue": message.queue().queue_id(),
        "offset": message.queue_offset().get(),
        "id": message.offset_message_id().to_string(),
    })
}
