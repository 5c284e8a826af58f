//! The commands: each asks through the client and gives back what to print.

use ringmq_client::Client;

use crate::{
    cli::{Cluster, Command, Message, Offset, Topic},
    failure::Failure,
    report::Report,
};

mod cluster;
mod message;
mod offset;
mod topic;

/// Runs a command.
///
/// # Errors
///
/// [`Failure`], with the line to show.
pub(crate) async fn run(client: &Client, command: &Command) -> Result<Report, Failure> {
    match command {
        Command::Cluster(Cluster::List) => cluster::list(client).await,
        Command::Topic(Topic::List) => topic::list(client).await,
        Command::Topic(Topic::Create(args)) => topic::create(client, args).await,
        Command::Topic(Topic::Route { topic }) => topic::route(client, topic).await,
        Command::Topic(Topic::Stats { topic }) => topic::stats(client, topic).await,
        Command::Offset(Offset::Query { group, topic }) => {
            offset::query(client, group, topic).await
        }
        Command::Offset(Offset::Set(args)) => offset::set(client, args).await,
        Command::Message(Message::View { id }) => message::view(client, id).await,
        Command::Message(Message::Send(args)) => message::send(client, args).await,
    }
}
