//! `cluster list`.

use ringmq_client::Client;
use serde_json::json;

use crate::{failure::Failure, report::Report};

pub(super) async fn list(client: &Client) -> Result<Report, Failure> {
    let info = client.admin().clusters().await?;
    let mut rows = Vec::new();
    for (cluster, names) in &info.cluster_addr_table {
        let mut names = names.clone();
        names.sort();
        for broker in names.iter().filter_map(|name| info.broker_addr_table.get(name)) {
            for (id, addr) in &broker.broker_addrs {
                rows.push(vec![json!(cluster), json!(broker.broker_name), json!(id), json!(addr)]);
            }
        }
    }
    Ok(Report::Rows { columns: vec!["cluster", "broker", "id", "address"], rows })
}
