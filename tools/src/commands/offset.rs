//! `offset query`, `offset set`.

use ringmq_client::{Client, MessageQueue, QueueOffset};
use serde_json::{Value, json};

use crate::{cli::SetOffset, failure::Failure, report::Report};

pub(super) async fn query(client: &Client, group: &str, topic: &str) -> Result<Report, Failure> {
    let admin = client.admin();
    let mut rows = Vec::new();
    for queue in admin.queues(topic).await? {
        let (min, max) = (admin.min_offset(&queue).await?, admin.max_offset(&queue).await?);
        let committed = admin.committed(group, &queue).await?;
        // Without an offset nothing has been read yet.
        let from = committed.unwrap_or(min);
        rows.push(vec![
            json!(queue.broker_name()),
            json!(queue.queue_id()),
            json!(min.get()),
            json!(max.get()),
            committed.map_or(Value::Null, |offset| json!(offset.get())),
            json!(max.get().saturating_sub(from.get())),
        ]);
    }
    let columns = vec!["broker", "queue", "min_offset", "max_offset", "committed", "lag"];
    Ok(Report::Rows { columns, rows })
}

pub(super) async fn set(client: &Client, args: &SetOffset) -> Result<Report, Failure> {
    let admin = client.admin();
    let is_meant = |queue: &MessageQueue| {
        args.broker.as_ref().is_none_or(|name| name == queue.broker_name())
            && args.queue.is_none_or(|id| id == queue.queue_id())
    };
    let mut queues = admin.queues(&args.topic).await?;
    queues.retain(is_meant);
    if queues.is_empty() {
        return Err(Failure::NotFound(format!("{} has no such queue", args.topic)));
    }
    // All targets are known before the first offset changes, so that a wrong one changes nothing.
    let mut targets = Vec::new();
    for queue in queues {
        let before = admin.committed(&args.group, &queue).await?;
        targets.push((target(client, args, &queue).await?, before, queue));
    }
    let mut rows = Vec::new();
    for (target, before, queue) in targets {
        admin.commit(&args.group, &queue, target).await?;
        rows.push(vec![
            json!(queue.broker_name()),
            json!(queue.queue_id()),
            before.map_or(Value::Null, |offset| json!(offset.get())),
            json!(target.get()),
        ]);
    }
    Ok(Report::Rows { columns: vec!["broker", "queue", "before", "now"], rows })
}

/// Where a queue's offset goes.
async fn target(
    client: &Client,
    args: &SetOffset,
    queue: &MessageQueue,
) -> Result<QueueOffset, Failure> {
    let admin = client.admin();
    let (min, max) = (admin.min_offset(queue).await?, admin.max_offset(queue).await?);
    if let Some(time) = args.to_time {
        return Ok(admin.search_offset(queue, time).await?);
    }
    let Some(to) = args.to.map(QueueOffset::new) else {
        return Ok(if args.to_first { min } else { max });
    };
    if to < min || max < to {
        return Err(Failure::Argument(format!("{queue} has the offsets {min} to {max}, not {to}")));
    }
    Ok(to)
}
