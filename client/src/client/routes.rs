//! Routes: asked of a name server, kept, and refreshed.
//!
//! One name server is used as long as it answers; the next in the list takes its place when it does
//! not. A route stays in use until a newer one has been read: neither a silent name server nor one
//! that has just restarted makes a known topic unknown.
//!
//! Source: Apache RocketMQ 4.9.8, `MQClientInstance.updateTopicRouteInfoFromNameServer`.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use foldhash::fast::FixedState;
use ringmq_protocol::{
    body::{self, TopicRouteData},
    codes::{request, response},
    encode::FrameWriter,
    headers::RouteRequest,
    names::AUTO_CREATE_TOPIC,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{Shared, servers::NameServers};
use crate::{
    Error, lock,
    remoting::{Answer, unexpected},
    route::{Route, all_addrs},
};

/// Most topics whose routes are kept. Beyond it, one that was not used lately makes room.
const ROUTES_MAX: usize = 10_000;

/// Refreshes that a route is kept without being used: 10 minutes of the default period.
const IDLE_ROUNDS_MAX: u32 = 20;

/// Age at which the route of a topic that did not exist yet is asked for again: the topic may have
/// been created by the message that was sent meanwhile.
const PROVISIONAL_AGE_MAX: Duration = Duration::from_secs(1);

/// The routes of a client.
#[derive(Debug)]
pub(crate) struct Routes {
    pub(super) servers: NameServers,
    known: Mutex<HashMap<String, Arc<Route>, FixedState>>,
    /// Held while asking, so that one question serves all who need the same route.
    asking: tokio::sync::Mutex<()>,
    /// Counts changes of any route.
    changes: watch::Sender<u64>,
    /// Topics whose routes may be out of date, since sends failed.
    doubted: Mutex<BTreeSet<String>>,
    /// Wakes the upkeep for them.
    doubt: Arc<Notify>,
}

impl Routes {
    pub(crate) fn new(servers: Vec<String>, first: usize) -> Self {
        Self {
            servers: NameServers::new(servers, first),
            known: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            changes: watch::Sender::new(0),
            doubted: Mutex::default(),
            doubt: Arc::default(),
        }
    }

    /// The name servers, as `host:port;host:port`.
    pub(crate) fn servers(&self) -> String {
        self.servers.all().join(";")
    }

    /// Has a topic's route asked for again soon: a send by it failed.
    pub(crate) fn doubt(&self, topic: &str) {
        let mut doubted = lock(&self.doubted);
        if doubted.len() < ROUTES_MAX && !doubted.contains(topic) {
            doubted.insert(topic.into());
            drop(doubted);
            self.doubt.notify_one();
        }
    }

    /// Tells when a route was doubted.
    pub(super) fn doubts(&self) -> Arc<Notify> {
        Arc::clone(&self.doubt)
    }

    /// Tells when a route has changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn known(&self, topic: &str) -> Option<Arc<Route>> {
        let route = lock(&self.known).get(topic).cloned()?;
        route.mark_used();
        Some(route)
    }

    fn all(&self) -> Vec<(String, Arc<Route>)> {
        lock(&self.known).iter().map(|(topic, route)| (topic.clone(), Arc::clone(route))).collect()
    }

    /// Addresses of all brokers known, each with whether it is a master's.
    pub(crate) fn addrs(&self) -> impl Iterator<Item = (String, bool)> {
        let routes: Vec<_> = lock(&self.known).values().cloned().collect();
        all_addrs(routes.iter()).into_iter()
    }

    /// Keeps a route; one that says the same as before leaves the earlier one in place, whose
    /// round robin goes on.
    fn store(&self, topic: &str, route: Route) -> Arc<Route> {
        let mut known = lock(&self.known);
        if let Some(old) = known.get(topic) {
            if old.is_same(&route) && !route.is_provisional {
                return Arc::clone(old);
            }
            route.take_idle_rounds(old);
        }
        if known.len() >= ROUTES_MAX && !known.contains_key(topic) {
            let idle = known.iter().max_by_key(|(_, route)| route.idle_rounds());
            let idle = idle.map(|(topic, _)| topic.clone());
            idle.and_then(|topic| known.remove(&topic));
        }
        let route = Arc::new(route);
        known.insert(topic.into(), Arc::clone(&route));
        drop(known);
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
        route
    }
}

impl Shared {
    /// The route of an existing topic.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoute`], or what kept all name servers from answering.
    pub(crate) async fn route(&self, topic: &str, deadline: Instant) -> Result<Arc<Route>, Error> {
        if let Some(route) = self.routes.known(topic).filter(|route| !route.is_provisional) {
            return Ok(route);
        }
        let _asking = self.asking(topic, deadline).await?;
        if let Some(route) = self.routes.known(topic).filter(|route| !route.is_provisional) {
            return Ok(route);
        }
        self.ask_route(topic, deadline).await
    }

    /// The turn to ask for a route.
    async fn asking(
        &self,
        topic: &str,
        deadline: Instant,
    ) -> Result<tokio::sync::MutexGuard<'_, ()>, Error> {
        let asking = tokio::time::timeout_at(deadline, self.routes.asking.lock()).await;
        asking.map_err(|_| Error::NoRoute { topic: topic.into() })
    }

    /// The route for sending to a topic that may not exist yet.
    ///
    /// # Errors
    ///
    /// As [`Shared::route`], if brokers do not create topics by themselves either.
    pub(crate) async fn publish_route(
        &self,
        topic: &str,
        deadline: Instant,
    ) -> Result<Arc<Route>, Error> {
        let is_fresh = |route: &Arc<Route>| {
            !route.is_provisional || route.fetched.elapsed() < PROVISIONAL_AGE_MAX
        };
        if let Some(route) = self.routes.known(topic).filter(is_fresh) {
            return Ok(route);
        }
        let _asking = self.asking(topic, deadline).await?;
        if let Some(route) = self.routes.known(topic).filter(is_fresh) {
            return Ok(route);
        }
        match self.ask_route(topic, deadline).await {
            Err(Error::NoRoute { .. }) => {}
            result => return result,
        }
        let template = self.ask_name_server(AUTO_CREATE_TOPIC, deadline).await;
        let template = template.map_err(|error| match error {
            Error::NoRoute { .. } => Error::NoRoute { topic: topic.into() },
            error => error,
        })?;
        let route = Route::provisional(topic, template, Instant::now());
        tracing::debug!(topic, "topic is unknown, the first message creates it");
        Ok(self.store_route(topic, route))
    }

    /// Asks again, whatever is known, and keeps the answer.
    pub(crate) async fn ask_route(
        &self,
        topic: &str,
        deadline: Instant,
    ) -> Result<Arc<Route>, Error> {
        let data = self.ask_name_server(topic, deadline).await?;
        Ok(self.store_route(topic, Route::new(topic, data, Instant::now())))
    }

    fn store_route(&self, topic: &str, route: Route) -> Arc<Route> {
        let before: Vec<_> = self.routes.addrs().map(|(addr, _)| addr).collect();
        let route = self.routes.store(topic, route);
        if route.addrs().any(|(addr, _)| !before.iter().any(|known| known == addr)) {
            // Brokers that were not known before have not heard of this client.
            self.groups.request_heartbeat();
        }
        route
    }

    async fn ask_name_server(
        &self,
        topic: &str,
        deadline: Instant,
    ) -> Result<TopicRouteData, Error> {
        let header = RouteRequest { topic: topic.into(), accept_standard_json_only: Some(true) };
        let asked = self
            .call_name_server(request::GET_ROUTEINFO_BY_TOPIC, |ext| header.encode(ext), deadline)
            .await;
        let (addr, answer) = asked.map_err(|error| match error.code() {
            Some(response::TOPIC_NOT_EXIST) => Error::NoRoute { topic: topic.into() },
            _ => error,
        })?;
        let data: TopicRouteData =
            body::decode(&answer.body).map_err(|error| unexpected(&addr, error))?;
        if data.queue_datas.is_empty() && data.order_topic_conf.is_none() {
            return Err(Error::NoRoute { topic: topic.into() });
        }
        Ok(data)
    }

    /// Asks the name server in use, and the others if it does not answer.
    ///
    /// # Errors
    ///
    /// What the last of them answered, or why it could not.
    pub(crate) async fn call_name_server(
        &self,
        code: i32,
        ext: impl Fn(&mut FrameWriter<'_, '_>),
        deadline: Instant,
    ) -> Result<(String, Answer), Error> {
        self.check_open()?;
        let servers = self.routes.servers.all();
        let first = self.routes.servers.at();
        let mut failure = Error::Closed;
        for turn in 0..servers.len() {
            let at = (first + turn).checked_rem(servers.len()).unwrap_or_default();
            let Some(addr) = servers.get(at) else { break };
            let request = self.remoting.request(code, &ext, Bytes::new())?;
            match self.remoting.call_ok(addr, request, share(deadline, servers.len() - turn)).await
            {
                Ok(answer) => {
                    self.routes.servers.stay_at(at);
                    return Ok((addr.clone(), answer));
                }
                Err(error @ Error::Refused { .. }) => return Err(error),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Asks again for the routes that were doubted.
    pub(super) async fn settle_doubts(&self) {
        let topics = std::mem::take(&mut *lock(&self.routes.doubted));
        for topic in topics {
            if let Err(error) = self.ask_route(&topic, self.deadline()).await {
                tracing::debug!(topic, %error, "kept the old route");
            }
        }
    }

    /// Asks for all routes in use again, drops those that nobody used for a while, and closes
    /// connections to addresses in none of them.
    pub(super) async fn refresh_routes(&self) {
        for (topic, route) in self.routes.all() {
            if self.groups.is_subscribed(&topic) {
                route.mark_used();
            }
            if route.idle_rounds() >= IDLE_ROUNDS_MAX {
                lock(&self.routes.known).remove(&topic);
                continue;
            }
            route.count_round();
            let deadline = Instant::now() + self.call_timeout;
            let asked = match route.is_provisional {
                // Those are asked for when they are used.
                true => continue,
                false => self.ask_route(&topic, deadline).await,
            };
            if let Err(error) = asked {
                tracing::debug!(topic, %error, "kept the old route");
            }
        }
        let addrs: Vec<_> = self.routes.addrs().map(|(addr, _)| addr).collect();
        let servers = self.routes.servers.all();
        let in_use =
            |addr: &str| addrs.iter().any(|a| a == addr) || servers.iter().any(|a| a == addr);
        self.remoting.retain(in_use);
    }
}

/// When one of several attempts has to be done so that each gets as much of the time.
fn share(deadline: Instant, attempts: usize) -> Instant {
    let now = Instant::now();
    let attempts = u32::try_from(attempts).unwrap_or(u32::MAX).max(1);
    now + deadline.saturating_duration_since(now) / attempts
}
