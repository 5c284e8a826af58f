//! `topic list`, `topic create`, `topic route`, `topic stats`.

use ringmq_client::{
    Client,
    admin::{BrokerData, NewTopic},
};
use serde_json::{Value, json};

use crate::{cli::CreateTopic, failure::Failure, report::Report, time};

pub(super) async fn list(client: &Client) -> Result<Report, Failure> {
    let topics = client.admin().topics().await?;
    let rows = topics.into_iter().map(|topic| vec![topic.into()]).collect();
    Ok(Report::Rows { columns: vec!["topic"], rows })
}

pub(super) async fn create(client: &Client, args: &CreateTopic) -> Result<Report, Failure> {
    let info = client.admin().clusters().await?;
    let is_meant = |broker: &&BrokerData| {
        args.cluster.as_ref().is_none_or(|cluster| *cluster == broker.cluster)
            && args.broker.as_ref().is_none_or(|name| *name == broker.broker_name)
    };
    let masters: Vec<_> = info
        .broker_addr_table
        .values()
        .filter(is_meant)
        .filter_map(|broker| Some((broker.broker_name.as_str(), broker.master_addr()?)))
        .collect();
    if masters.is_empty() {
        return Err(Failure::NotFound("no such broker is running".into()));
    }
    let topic = NewTopic { name: args.topic.clone(), queue_count: args.queues, perm: args.perm };
    let mut rows = Vec::new();
    for (name, addr) in masters {
        client.admin().create_topic(addr, &topic).await?;
        rows.push(vec![json!(topic.name), json!(name), json!(addr), json!(args.queues)]);
    }
    Ok(Report::Rows { columns: vec!["topic", "broker", "address", "queues"], rows })
}

pub(super) async fn route(client: &Client, topic: &str) -> Result<Report, Failure> {
    let route = client.admin().route(topic).await?;
    let mut queues = route.queue_datas;
    queues.sort_by(|a, b| a.broker_name.cmp(&b.broker_name));
    let rows = queues.into_iter().map(|queues| {
        let broker = route.broker_datas.iter().find(|b| b.broker_name == queues.broker_name);
        vec![
            broker.map_or(Value::Null, |broker| json!(broker.cluster)),
            json!(queues.broker_name),
            broker.map_or(Value::Null, |broker| json!(broker.broker_addrs)),
            json!(queues.read_queue_nums),
            json!(queues.write_queue_nums),
            json!(perm(queues.perm)),
        ]
    });
    let columns = vec!["cluster", "broker", "addresses", "read_queues", "write_queues", "perm"];
    Ok(Report::Rows { columns, rows: rows.collect() })
}

/// Permission bits as letters: read, write, inherit.
fn perm(bits: i32) -> String {
    let letters = [(4, 'r'), (2, 'w'), (1, 'i')];
    letters.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, letter)| letter).collect()
}

pub(super) async fn stats(client: &Client, topic: &str) -> Result<Report, Failure> {
    let stats = client.admin().topic_stats(topic).await?;
    let rows = stats.into_iter().map(|stats| {
        vec![
            json!(stats.queue.broker_name()),
            json!(stats.queue.queue_id()),
            json!(stats.min_offset.get()),
            json!(stats.max_offset.get()),
            json!(stats.max_offset.get() - stats.min_offset.get()),
            stats.last_store_time.map_or(Value::Null, |time| json!(time::to_text(time))),
        ]
    });
    let columns = vec!["broker", "queue", "min_offset", "max_offset", "messages", "last_stored"];
    Ok(Report::Rows { columns, rows: rows.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_have_letters() {
        for (bits, letters) in [(0, ""), (2, "w"), (4, "r"), (6, "rw"), (7, "rwi")] {
            assert_eq!(perm(bits), letters);
        }
    }
}
