//! Telling the name servers: one link per name server, each a task with a connection of its own.
//!
//! A link registers all topics when it connects and then every 30 s, and at once what changed in
//! between. Only a name server that took a registration on this very connection gets the changes
//! alone; after a break it gets everything. The end of a connection is noticed at once, so a name
//! server that comes back knows this broker within seconds, not after half a minute.
//!
//! Source: Apache RocketMQ 4.9.8, `BrokerOuterAPI.registerBrokerAll`,
//! `BrokerController.registerIncrementBrokerData`.

mod body;
mod link;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use imbl::HashMap;
use tokio::{sync::watch, task::JoinSet, time::timeout};

use self::link::{Link, LinkState};
use super::{BrokerControlConfig, TopicConfig, facts::Version};

/// How long a registration may take. Source: `registerBrokerTimeoutMills`, 6 s.
pub(crate) const REGISTER_TIMEOUT: Duration = Duration::from_secs(6);
/// How long the good-bye may take at shutdown. Source: `unregisterBrokerAll`, 3 s.
pub(crate) const UNREGISTER_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the creator of a topic waits for the name servers at most.
pub(crate) const ANNOUNCE_WAIT_MAX: Duration = Duration::from_millis(500);
/// Changes kept for links that are up to date except for them; others register everything.
const RECENT_MAX: usize = 256;

/// What the name servers are to know, at one point in time.
#[derive(Clone, Debug)]
struct Announcement {
    /// Rises with every change.
    number: u64,
    topics: HashMap<Arc<str>, Arc<TopicConfig>>,
    version: Version,
    /// The latest changes with their numbers, oldest first.
    recent: VecDeque<(u64, Arc<TopicConfig>)>,
    /// All changes with a higher number than this are in `recent`.
    recent_after: u64,
    /// The broker is about to stop: say good-bye.
    leaving: bool,
}

/// All links of one broker.
pub(crate) struct Registrar {
    announcement: watch::Sender<Announcement>,
    states: Vec<watch::Receiver<LinkState>>,
    links: JoinSet<()>,
}

impl Registrar {
    /// Starts one link per address. Call it inside the runtime that will run them.
    pub(crate) fn new(
        config: &Arc<BrokerControlConfig>,
        addrs: Vec<String>,
        topics: HashMap<Arc<str>, Arc<TopicConfig>>,
        version: Version,
    ) -> Self {
        let first = Announcement::first(topics, version);
        let (announcement, receiver) = watch::channel(first);
        let mut links = JoinSet::new();
        let mut states = Vec::new();
        for addr in addrs {
            let (link, state) = Link::new(Arc::clone(config), addr, receiver.clone());
            links.spawn_local(link.run());
            states.push(state);
        }
        Self { announcement, states, links }
    }

    /// Waits until every link has registered or failed once.
    pub(crate) fn started(&self) -> impl Future<Output = ()> + use<> {
        self.wait_for(|state| state.tried)
    }

    /// Tells all name servers of topics that changed. The future is ready when those that can be
    /// reached know, or after [`ANNOUNCE_WAIT_MAX`].
    pub(crate) fn announce(
        &self,
        updated: Vec<Arc<TopicConfig>>,
        topics: HashMap<Arc<str>, Arc<TopicConfig>>,
        version: Version,
    ) -> impl Future<Output = ()> + use<> {
        self.announcement.send_modify(|now| now.change(updated, topics, version));
        let number = self.announcement.borrow().number;
        let known = self.wait_for(move |state| state.known >= number || !state.up);
        async move {
            // Late is not lost: the link goes on.
            let _ = timeout(ANNOUNCE_WAIT_MAX, known).await;
        }
    }

    fn wait_for<F: Fn(&LinkState) -> bool + Copy>(
        &self,
        done: F,
    ) -> impl Future<Output = ()> + use<F> {
        let states = self.states.clone();
        async move {
            for mut state in states {
                // An error means that the link has ended, and with it what is waited for.
                let _ = state.wait_for(done).await;
            }
        }
    }

    /// Says good-bye to all name servers, each within [`UNREGISTER_TIMEOUT`].
    pub(crate) async fn leave(mut self) {
        self.announcement.send_modify(|now| now.leaving = true);
        while self.links.join_next().await.is_some() {}
    }
}

impl Announcement {
    fn first(topics: HashMap<Arc<str>, Arc<TopicConfig>>, version: Version) -> Self {
        let recent = VecDeque::new();
        Self { number: 1, topics, version, recent, recent_after: 1, leaving: false }
    }

    fn change(
        &mut self,
        updated: Vec<Arc<TopicConfig>>,
        topics: HashMap<Arc<str>, Arc<TopicConfig>>,
        version: Version,
    ) {
        self.number += 1;
        self.topics = topics;
        self.version = version;
        self.recent.extend(updated.into_iter().map(|topic| (self.number, topic)));
        while self.recent.len() > RECENT_MAX {
            if let Some((number, _)) = self.recent.pop_front() {
                self.recent_after = number;
            }
        }
    }

    /// The topics that changed after announcement `known`, each once, or `None` if not all of them
    /// are at hand any more.
    fn changes_since(&self, known: u64) -> Option<Vec<Arc<TopicConfig>>> {
        if known < self.recent_after {
            return None;
        }
        let mut changes: Vec<Arc<TopicConfig>> = Vec::new();
        for (_, topic) in self.recent.iter().rev().filter(|(number, _)| *number > known) {
            if changes.iter().all(|later| later.name != topic.name) {
                changes.push(Arc::clone(topic));
            }
        }
        Some(changes)
    }
}

#[cfg(test)]
mod tests;
