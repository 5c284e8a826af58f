//! What administrators ask and change.
//!
//! The bodies are those of the protocol crate: an admin tool shows what servers say.

use std::time::SystemTime;

use bytes::Bytes;
use ringmq_protocol::{
    body::{self, TopicList, admin::TopicStatsTable},
    codes::{request, response},
    headers::{CreateTopicRequest, TopicRequest, ViewMessageRequest},
    names::{self, AUTO_CREATE_TOPIC, perm},
};
pub use ringmq_protocol::{
    body::{BrokerData, ClusterInfo, QueueData, TopicRouteData},
    message_id::OffsetMessageId,
};

use crate::{
    Client, Error, Invalid, MessageQueue, QueueOffset, ReceivedMessage, clock, message,
    remoting::unexpected,
};

/// Asks and changes what belongs to the cluster and not to one application. Made by
/// [`Client::admin`].
///
/// ```no_run
/// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
/// for topic in client.admin().topics().await? {
///     println!("{topic}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Admin {
    client: Client,
}

/// A topic to create, or to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// The name.
    pub name: String,
    /// Queues to read from and to write to, on each broker.
    pub queue_count: i32,
    /// Bits of `ringmq_protocol::names::perm`: 4 read, 2 write.
    pub perm: i32,
}

impl NewTopic {
    /// A topic that can be read and written.
    ///
    /// ```
    /// let topic = ringmq_client::admin::NewTopic::new("Orders", 8);
    /// assert_eq!(topic.perm, 6);
    /// ```
    pub fn new(name: &str, queue_count: i32) -> Self {
        Self { name: name.into(), queue_count, perm: perm::READ | perm::WRITE }
    }
}

/// The extent of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStats {
    /// The queue.
    pub queue: MessageQueue,
    /// Offset of the first message that it still has.
    pub min_offset: QueueOffset,
    /// Offset that its next message will have.
    pub max_offset: QueueOffset,
    /// When its last message was stored; `None` if it has none, or the broker does not tell.
    pub last_store_time: Option<SystemTime>,
}

impl Admin {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Clusters and brokers, as the name server knows them.
    ///
    /// # Errors
    ///
    /// Why no name server could be asked.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// for (name, broker) in client.admin().clusters().await?.broker_addr_table {
    ///     println!("{name}: {:?}", broker.master_addr());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn clusters(&self) -> Result<ClusterInfo, Error> {
        let shared = &self.client.shared;
        let code = request::GET_BROKER_CLUSTER_INFO;
        let (addr, answer) = shared.call_name_server(code, |_| {}, shared.deadline()).await?;
        body::decode(&answer.body).map_err(|error| unexpected(&addr, error))
    }

    /// Names of all topics, sorted.
    ///
    /// # Errors
    ///
    /// Why no name server could be asked.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// println!("{:?}", client.admin().topics().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn topics(&self) -> Result<Vec<String>, Error> {
        let shared = &self.client.shared;
        let code = request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER;
        let (addr, answer) = shared.call_name_server(code, |_| {}, shared.deadline()).await?;
        let list: TopicList =
            body::decode(&answer.body).map_err(|error| unexpected(&addr, error))?;
        let mut topics = list.topic_list;
        topics.sort();
        Ok(topics)
    }

    /// Where a topic is, as the name server knows it now.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoute`], or why no name server could be asked.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// println!("{:?}", client.admin().route("Orders").await?.queue_datas);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn route(&self, topic: &str) -> Result<TopicRouteData, Error> {
        let shared = &self.client.shared;
        Ok(shared.ask_route(topic, shared.deadline()).await?.data.clone())
    }

    /// Queues of a topic that can be read.
    ///
    /// # Errors
    ///
    /// As [`Admin::route`].
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// println!("{} queues", client.admin().queues("Orders").await?.len());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn queues(&self, topic: &str) -> Result<Vec<MessageQueue>, Error> {
        let shared = &self.client.shared;
        Ok(shared.ask_route(topic, shared.deadline()).await?.subscribe().to_vec())
    }

    /// Creates a topic at the broker with this address, or changes it there.
    ///
    /// # Errors
    ///
    /// [`Invalid::Topic`], or what the broker or the way to it says.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::admin::NewTopic;
    ///
    /// client.admin().create_topic("127.0.0.1:10911", &NewTopic::new("Orders", 8)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_topic(&self, broker_addr: &str, topic: &NewTopic) -> Result<(), Error> {
        names::validate_topic(&topic.name).map_err(|_| Invalid::Topic(topic.name.clone()))?;
        let header = CreateTopicRequest {
            topic: topic.name.as_str().into(),
            default_topic: AUTO_CREATE_TOPIC.into(),
            read_queue_nums: topic.queue_count,
            write_queue_nums: topic.queue_count,
            perm: topic.perm,
            topic_filter_type: "SINGLE_TAG".into(),
            topic_sys_flag: Some(0),
            order: false,
            attributes: None,
            force: None,
        };
        let shared = &self.client.shared;
        let code = request::UPDATE_AND_CREATE_TOPIC;
        let request = shared.remoting.request(code, |ext| header.encode(ext), Bytes::new())?;
        shared.remoting.call_ok(broker_addr, request, shared.deadline()).await.map(drop)
    }

    /// The extent of each queue of a topic, sorted by queue.
    ///
    /// # Errors
    ///
    /// As [`Admin::route`], or what a broker or the way to it says.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// for stats in client.admin().topic_stats("Orders").await? {
    ///     println!("{}: {} to {}", stats.queue, stats.min_offset, stats.max_offset);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn topic_stats(&self, topic: &str) -> Result<Vec<QueueStats>, Error> {
        let shared = &self.client.shared;
        let route = shared.ask_route(topic, shared.deadline()).await?;
        let mut all = Vec::new();
        for broker in &route.data.broker_datas {
            let Some(addr) = broker.master_addr() else { continue };
            match self.broker_stats(addr, topic).await {
                Ok(stats) => all.extend(stats),
                // The broker has no such request, but every broker knows the ends of a queue.
                Err(error) if error.code() == Some(response::REQUEST_CODE_NOT_SUPPORTED) => {
                    let name = broker.broker_name.as_str();
                    let queues = route.subscribe().iter();
                    for queue in queues.filter(|queue| queue.broker_name() == name) {
                        all.push(self.ends(queue).await?);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        all.sort_by(|a, b| a.queue.cmp(&b.queue));
        Ok(all)
    }

    async fn broker_stats(&self, addr: &str, topic: &str) -> Result<Vec<QueueStats>, Error> {
        let shared = &self.client.shared;
        let header = TopicRequest { topic: topic.into() };
        let code = request::GET_TOPIC_STATS_INFO;
        let request = shared.remoting.request(code, |ext| header.encode(ext), Bytes::new())?;
        let answer = shared.remoting.call_ok(addr, request, shared.deadline()).await?;
        let table = TopicStatsTable::decode(&answer.body);
        let table = table.map_err(|error| unexpected(addr, error))?.offset_table;
        let stats = table.into_iter().map(|(queue, extent)| QueueStats {
            queue: MessageQueue::new(queue.topic, queue.broker_name, queue.queue_id),
            min_offset: QueueOffset::new(extent.min_offset),
            max_offset: QueueOffset::new(extent.max_offset),
            last_store_time: (extent.last_update_timestamp > 0)
                .then(|| clock::from_epoch_ms(extent.last_update_timestamp)),
        });
        Ok(stats.collect())
    }

    async fn ends(&self, queue: &MessageQueue) -> Result<QueueStats, Error> {
        Ok(QueueStats {
            queue: queue.clone(),
            min_offset: self.min_offset(queue).await?,
            max_offset: self.max_offset(queue).await?,
            last_store_time: None,
        })
    }

    /// The message with this id, from the broker that the id names.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if there is no message at that position any more.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::admin::OffsetMessageId;
    ///
    /// if let Some(id) = OffsetMessageId::parse("7F00000100002A9F0000000000001000") {
    ///     println!("{:?}", client.admin().message(&id).await?.body());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn message(&self, id: &OffsetMessageId) -> Result<ReceivedMessage, Error> {
        let shared = &self.client.shared;
        shared.check_open()?;
        let header = ViewMessageRequest { log_offset: id.log_offset, topic: None };
        let code = request::VIEW_MESSAGE_BY_ID;
        let request = shared.remoting.request(code, |ext| header.encode(ext), Bytes::new())?;
        let addr = id.host.to_string();
        let answer = shared.remoting.call_ok(&addr, request, shared.deadline()).await?;
        // The record does not say which name its broker has; its address is as good here.
        let messages = message::parse_all(&answer.body, &addr);
        let mut messages = messages.map_err(|error| unexpected(&addr, error))?;
        messages.pop().ok_or_else(|| unexpected(&addr, "no message in it"))
    }

    /// Offset of the first message that the queue still has.
    ///
    /// # Errors
    ///
    /// What the broker or the way to it says.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// println!("from {}", client.admin().min_offset(&queue).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn min_offset(&self, queue: &MessageQueue) -> Result<QueueOffset, Error> {
        self.client.shared.min_offset(queue).await
    }

    /// Offset that the queue's next message will have.
    ///
    /// # Errors
    ///
    /// What the broker or the way to it says.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// println!("up to {}", client.admin().max_offset(&queue).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn max_offset(&self, queue: &MessageQueue) -> Result<QueueOffset, Error> {
        self.client.shared.max_offset(queue).await
    }

    /// Offset of the first message that was stored at this time or later.
    ///
    /// # Errors
    ///
    /// What the broker or the way to it says.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// let now = std::time::SystemTime::now();
    /// println!("{}", client.admin().search_offset(&queue, now).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn search_offset(
        &self,
        queue: &MessageQueue,
        time: SystemTime,
    ) -> Result<QueueOffset, Error> {
        self.client.shared.search_offset(queue, time).await
    }

    /// Offset that a consumer group has committed; `None` if there is none.
    ///
    /// # Errors
    ///
    /// What the broker or the way to it says.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// println!("{:?}", client.admin().committed("orders-consumer", &queue).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn committed(
        &self,
        group: &str,
        queue: &MessageQueue,
    ) -> Result<Option<QueueOffset>, Error> {
        self.client.shared.committed(group, queue).await
    }

    /// Sets a consumer group's offset. Members that are running do not notice, and commit theirs.
    ///
    /// # Errors
    ///
    /// What the broker or the way to it says.
    ///
    /// ```no_run
    /// # async fn example(client: ringmq_client::Client, queue: ringmq_client::MessageQueue)
    /// # -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::QueueOffset;
    ///
    /// client.admin().commit("orders-consumer", &queue, QueueOffset::ZERO).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn commit(
        &self,
        group: &str,
        queue: &MessageQueue,
        offset: QueueOffset,
    ) -> Result<(), Error> {
        self.client.shared.commit(group, queue, offset).await
    }
}
