//! `message view`, `message send`.

use ringmq_client::{Client, Message, ReceivedMessage, admin::OffsetMessageId};
use serde_json::{Value, json};

use crate::{cli::SendMessage, failure::Failure, report::Report, time};

pub(super) async fn view(client: &Client, id: &OffsetMessageId) -> Result<Report, Failure> {
    let message = client.admin().message(id).await?;
    let properties: serde_json::Map<_, _> =
        message.properties().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    Ok(Report::Fields(vec![
        ("id", json!(message.message_id())),
        ("offset_id", json!(message.offset_message_id().to_string())),
        ("topic", json!(message.topic())),
        ("queue", json!(message.queue().queue_id())),
        ("queue_offset", json!(message.queue_offset().get())),
        ("tag", json!(message.tag())),
        ("keys", message.keys().collect()),
        ("born", json!(time::to_text(message.born_time()))),
        ("born_host", json!(message.born_host().to_string())),
        ("stored", json!(time::to_text(message.store_time()))),
        ("store_host", json!(message.store_host().to_string())),
        ("reconsume_times", json!(message.reconsume_times())),
        ("properties", Value::Object(properties)),
        ("body_len", json!(message.body().len())),
        ("body", body(&message)),
    ]))
}

/// The body as text if it is text, else in hex.
fn body(message: &ReceivedMessage) -> Value {
    match std::str::from_utf8(message.body()) {
        Ok(text) => json!(text),
        Err(_) => {
            message.body().iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
        }
    }
}

pub(super) async fn send(client: &Client, args: &SendMessage) -> Result<Report, Failure> {
    let mut message = Message::new(args.topic.as_str(), args.body.clone());
    if let Some(tag) = &args.tag {
        message = message.tag(tag.as_str());
    }
    if let Some(level) = args.delay_level {
        message = message.delay_level(level);
    }
    message = args.key.iter().fold(message, |message, key| message.key(key));
    for (name, value) in &args.property {
        message = message.property(name.as_str(), value.as_str());
    }
    let producer = client.producer(&args.group).start()?;
    let mut rows = Vec::new();
    for _ in 0..args.count {
        let receipt = producer.send(message.clone()).await?;
        rows.push(vec![
            json!(receipt.message_id),
            json!(receipt.offset_message_id),
            json!(receipt.queue.broker_name()),
            json!(receipt.queue.queue_id()),
            json!(receipt.queue_offset.get()),
        ]);
    }
    Ok(Report::Rows { columns: vec!["id", "offset_id", "broker", "queue", "queue_offset"], rows })
}
