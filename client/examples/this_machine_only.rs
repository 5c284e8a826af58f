//! Only this machine consumes: a strategy of one's own, for a test of a new version with real
//! messages, or for a machine with special hardware.
//!
//! All members of the group use it. The chosen machine's members divide the queues among them; the
//! others hold nothing, and take over when you tell them another machine.

use std::time::Duration;

use ringmq_client::{
    Client, Delivery, MessageQueue,
    allocate::{Allocate, Average, CannotAllocate},
};

/// Gives all queues to the members on one machine.
#[derive(Debug)]
struct ThisMachineOnly {
    /// Its address, with which the ids of its clients begin.
    ip: String,
}

impl Allocate for ThisMachineOnly {
    fn name(&self) -> String {
        "THIS_MACHINE_ONLY".into()
    }

    fn allocate(
        &self,
        member: &str,
        members: &[String],
        queues: &[MessageQueue],
    ) -> Result<Vec<MessageQueue>, CannotAllocate> {
        let is_chosen = |id: &&String| id.split('@').next() == Some(self.ip.as_str());
        let chosen: Vec<_> = members.iter().filter(is_chosen).cloned().collect();
        match chosen.is_empty() {
            // The chosen machine is down: rather nobody than somebody else.
            true => Ok(Vec::new()),
            false => Average.allocate(member, &chosen, queues),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let client = Client::connect(&name_server).await?;
    let ip = client.client_id().split('@').next().unwrap_or_default().to_owned();
    let consumer = client
        .push_consumer("example-machine")
        .subscribe("example-rust", "*")
        .strategy(ThisMachineOnly { ip })
        .start(|delivery: Delivery| async move { eprintln!("{} messages", delivery.len()) })
        .await?;
    eprintln!("holds {} queues", consumer.queues().len());
    tokio::signal::ctrl_c().await?;
    consumer.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}
