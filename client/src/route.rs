//! Where a topic is: the queues and addresses that follow from a name server's answer.

use std::{
    collections::BTreeMap,
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

use foldhash::fast::FixedState;
use ringmq_protocol::{
    body::{BrokerData, QueueData, TopicRouteData},
    names::perm,
};
use tokio::time::Instant;

use crate::{MessageQueue, unique};

/// Most queues of one topic that are looked at; a route that claims more is cut.
const QUEUES_MAX: usize = 65_536;

/// Most queues that a topic gets which is created by sending to it. Source: Apache RocketMQ 4.9.8,
/// `DefaultMQProducer.defaultTopicQueueNums`.
pub(crate) const CREATED_QUEUES_MAX: i32 = 4;

/// Counters of one route; more tasks than these share them.
const TURNS: usize = 16;

/// A topic's route. Replaced as a whole, never changed, except for the counters and the mark.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) data: TopicRouteData,
    /// Whether the topic does not exist yet, and this is where it can be created.
    pub(crate) is_provisional: bool,
    pub(crate) fetched: Instant,
    /// Queues to send to, in order of broker name and queue id.
    publish: Vec<MessageQueue>,
    /// Queues to read, in the same order.
    subscribe: Vec<MessageQueue>,
    /// Round robin over `publish`, for each task its own, as far as they go.
    turns: [AtomicUsize; TURNS],
    /// Refreshes since someone used the route.
    idle_rounds: AtomicU32,
}

impl Route {
    /// Reads a name server's answer.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `MQClientInstance.topicRouteData2TopicPublishInfo` and
    /// `topicRouteData2TopicSubscribeInfo`.
    pub(crate) fn new(topic: &str, mut data: TopicRouteData, fetched: Instant) -> Self {
        data.queue_datas.sort_by(|a, b| a.broker_name.cmp(&b.broker_name));
        let topic: Arc<str> = topic.into();
        let has_master = |queues: &&QueueData| {
            let brokers = &data.broker_datas;
            brokers.iter().any(|b| b.broker_name == queues.broker_name && b.master_addr().is_some())
        };
        let publish = match data.order_topic_conf.as_deref().filter(|conf| !conf.is_empty()) {
            Some(conf) => ordered_queues(&topic, conf),
            None => {
                let writable = data.queue_datas.iter().filter(|q| q.perm & perm::WRITE != 0);
                let writable = writable.filter(has_master);
                queues(&topic, writable.map(|q| (q.broker_name.as_str(), q.write_queue_nums)))
            }
        };
        let readable = data.queue_datas.iter().filter(|q| q.perm & perm::READ != 0);
        let subscribe =
            queues(&topic, readable.map(|q| (q.broker_name.as_str(), q.read_queue_nums)));
        Self {
            is_provisional: false,
            fetched,
            publish,
            subscribe,
            // Any start will do; half of the range keeps a counter from wrapping early.
            turns: std::array::from_fn(|_| {
                AtomicUsize::new(usize::try_from(unique::random() >> 33).unwrap_or_default())
            }),
            idle_rounds: AtomicU32::new(0),
            data,
        }
    }

    /// The route by which a topic can be created: that of the template topic, with fewer queues.
    pub(crate) fn provisional(topic: &str, mut template: TopicRouteData, fetched: Instant) -> Self {
        for queues in &mut template.queue_datas {
            let count = queues.read_queue_nums.min(CREATED_QUEUES_MAX);
            (queues.read_queue_nums, queues.write_queue_nums) = (count, count);
        }
        Self { is_provisional: true, ..Self::new(topic, template, fetched) }
    }

    /// The next queue to send to, of another broker than `avoid` if there is one.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `TopicPublishInfo.selectOneMessageQueue`, whose counters belong to
    /// threads.
    pub(crate) fn pick(&self, avoid: Option<&str>) -> Option<&MessageQueue> {
        let is_other = |queue: &MessageQueue| avoid != Some(queue.broker_name());
        let first = self.turn()?;
        if is_other(first) {
            return Some(first);
        }
        self.pick_where(is_other).or(Some(first))
    }

    /// The next queue to send to of those that fit; `None` if none does.
    pub(crate) fn pick_where(&self, fits: impl Fn(&MessageQueue) -> bool) -> Option<&MessageQueue> {
        (0..self.publish.len()).filter_map(|_| self.turn()).find(|queue| fits(queue))
    }

    fn turn(&self) -> Option<&MessageQueue> {
        let turn = self.turns.get(task_number() % TURNS)?.fetch_add(1, Ordering::Relaxed);
        self.publish.get(turn.checked_rem(self.publish.len())?)
    }

    /// Queues to send to.
    pub(crate) fn publish(&self) -> &[MessageQueue] {
        &self.publish
    }

    /// Queues to read.
    pub(crate) fn subscribe(&self) -> &[MessageQueue] {
        &self.subscribe
    }

    /// Address of a broker's master.
    pub(crate) fn master(&self, broker_name: &str) -> Option<&str> {
        self.broker(broker_name)?.master_addr()
    }

    /// Address to read from: the master's, else that of any replica.
    pub(crate) fn readable(&self, broker_name: &str) -> Option<&str> {
        let broker = self.broker(broker_name)?;
        broker.master_addr().or_else(|| broker.broker_addrs.values().next().map(String::as_str))
    }

    fn broker(&self, name: &str) -> Option<&BrokerData> {
        self.data.broker_datas.iter().find(|broker| broker.broker_name == name)
    }

    /// All addresses, with whether each is a master's.
    pub(crate) fn addrs(&self) -> impl Iterator<Item = (&str, bool)> {
        let brokers = self.data.broker_datas.iter();
        brokers.flat_map(|broker| {
            let master = broker.master_addr();
            broker.broker_addrs.values().map(move |addr| (addr.as_str(), master == Some(addr)))
        })
    }

    pub(crate) fn mark_used(&self) {
        self.idle_rounds.store(0, Ordering::Relaxed);
    }

    /// Refreshes since someone used the route.
    pub(crate) fn idle_rounds(&self) -> u32 {
        self.idle_rounds.load(Ordering::Relaxed)
    }

    /// Goes on counting where another route of the topic was: a refresh is no use.
    pub(crate) fn take_idle_rounds(&self, other: &Self) {
        self.idle_rounds.store(other.idle_rounds(), Ordering::Relaxed);
    }

    /// Counts a refresh.
    pub(crate) fn count_round(&self) {
        self.idle_rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the other route says the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.data == other.data && self.is_provisional == other.is_provisional
    }
}

/// A number that stays the same within a task.
fn task_number() -> usize {
    let hash = FixedState::default().hash_one(tokio::task::try_id());
    usize::try_from(hash >> 33).unwrap_or_default()
}

fn queues<'a>(
    topic: &Arc<str>,
    brokers: impl Iterator<Item = (&'a str, i32)>,
) -> Vec<MessageQueue> {
    let of_broker = |(name, count): (&str, i32)| {
        let (topic, name): (Arc<str>, Arc<str>) = (Arc::clone(topic), name.into());
        (0..count).map(move |id| MessageQueue::new(Arc::clone(&topic), Arc::clone(&name), id))
    };
    brokers.flat_map(of_broker).take(QUEUES_MAX).collect()
}

/// Queues of an ordered topic: `broker:count;broker:count`.
fn ordered_queues(topic: &Arc<str>, conf: &str) -> Vec<MessageQueue> {
    let parts = conf.split(';').filter_map(|part| part.split_once(':'));
    queues(topic, parts.filter_map(|(name, count)| Some((name, count.trim().parse().ok()?))))
}

/// Addresses of all brokers in several routes, each once, with whether it is a master's.
pub(crate) fn all_addrs<'a>(
    routes: impl Iterator<Item = &'a Arc<Route>>,
) -> BTreeMap<String, bool> {
    let mut addrs = BTreeMap::new();
    for (addr, is_master) in routes.flat_map(|route| route.addrs()) {
        *addrs.entry(addr.to_owned()).or_default() |= is_master;
    }
    addrs
}

#[cfg(test)]
mod tests {
    use ringmq_protocol::body;

    use super::*;

    fn route(json: &str) -> Route {
        Route::new("T", body::decode(json.as_bytes()).unwrap(), Instant::now())
    }

    /// As a 4.9 name server writes it for old clients, with a broker that has lost its master.
    const TWO: &str = r#"{"brokerDatas":[
        {"brokerAddrs":{0:"h:2",1:"h:3"},"brokerName":"b","cluster":"C"},
        {"brokerAddrs":{0:"h:1"},"brokerName":"a","cluster":"C"},
        {"brokerAddrs":{1:"h:4"},"brokerName":"c","cluster":"C"}],
        "filterServerTable":{},"queueDatas":[
        {"brokerName":"b","perm":6,"readQueueNums":1,"topicSysFlag":0,"writeQueueNums":2},
        {"brokerName":"c","perm":6,"readQueueNums":1,"topicSynFlag":0,"writeQueueNums":1},
        {"brokerName":"a","perm":2,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":2}]}"#;

    fn names<'a>(queues: impl IntoIterator<Item = &'a MessageQueue>) -> Vec<String> {
        queues.into_iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_masters_are_written_and_all_readable_brokers_read() {
        let route = route(TWO);
        assert_eq!(names(&route.publish), ["T@a:0", "T@a:1", "T@b:0", "T@b:1"]);
        assert_eq!(names(&route.subscribe), ["T@b:0", "T@c:0"]);
        assert_eq!(route.master("b"), Some("h:2"));
        assert_eq!((route.master("c"), route.readable("c")), (None, Some("h:4")));
        let addrs = all_addrs([&Arc::new(route)].into_iter());
        let want = [("h:1", true), ("h:2", true), ("h:3", false), ("h:4", false)];
        assert_eq!(addrs, want.map(|(addr, master)| (addr.to_owned(), master)).into());
    }

    #[test]
    fn sends_go_round_and_a_retry_leaves_the_broker() {
        let route = route(TWO);
        let mut round = names((0..4).filter_map(|_| route.pick(None)));
        round.sort();
        assert_eq!(round, names(&route.publish));
        for _ in 0..8 {
            assert_eq!(route.pick(Some("a")).unwrap().broker_name(), "b");
            assert_eq!(route.pick(Some("b")).unwrap().broker_name(), "a");
        }
    }

    #[tokio::test]
    async fn each_task_goes_round_for_itself() {
        let route = Arc::new(route(TWO));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let route = Arc::clone(&route);
                tokio::spawn(async move {
                    let mut round = Vec::new();
                    for _ in 0..4 {
                        round.push(route.pick(None).unwrap().to_string());
                        tokio::task::yield_now().await;
                    }
                    round
                })
            })
            .collect();
        let mut even = 0;
        for task in tasks {
            let mut round = task.await.unwrap();
            round.sort();
            round.dedup();
            even += usize::from(round.len() == 4);
        }
        // Tasks that share a counter may miss a queue, but not all of eight do.
        assert!(0 < even, "no task went round");
    }

    #[test]
    fn with_one_broker_a_retry_takes_another_queue_of_it() {
        let one = r#"{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"a"}],
            "queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":2,"writeQueueNums":2}]}"#;
        assert_eq!(route(one).pick(Some("a")).unwrap().broker_name(), "a");
        assert_eq!(route("{}").pick(None), None);
    }

    #[test]
    fn an_ordered_topic_has_the_queues_of_its_configuration() {
        let route = route(r#"{"orderTopicConf":"b:2;a:1","brokerDatas":[],"queueDatas":[]}"#);
        assert_eq!(names(&route.publish), ["T@b:0", "T@b:1", "T@a:0"]);
    }

    #[test]
    fn a_topic_to_create_has_at_most_four_queues() {
        let template = r#"{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"a"}],
            "queueDatas":[{"brokerName":"a","perm":7,"readQueueNums":8,"writeQueueNums":8}]}"#;
        let template = body::decode(template.as_bytes()).unwrap();
        let route = Route::provisional("New", template, Instant::now());
        assert!(route.is_provisional);
        assert_eq!(names(&route.publish), ["New@a:0", "New@a:1", "New@a:2", "New@a:3"]);
    }

    #[test]
    fn a_route_that_claims_billions_of_queues_is_cut() {
        let huge = r#"{"brokerDatas":[{"brokerAddrs":{"0":"h:1"},"brokerName":"a"}],"queueDatas":
            [{"brokerName":"a","perm":6,"readQueueNums":2147483647,"writeQueueNums":2147483647}]}"#;
        let route = route(huge);
        assert_eq!((route.publish.len(), route.subscribe.len()), (QUEUES_MAX, QUEUES_MAX));
    }
}
