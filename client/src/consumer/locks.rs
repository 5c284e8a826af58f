//! Locks that brokers keep on queues, so that only one member of a group reads one in order.
//!
//! Source: Apache RocketMQ 4.9.8, `RebalanceImpl.lock`, `lockAll` and `unlock`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use ringmq_protocol::{
    body::{self, LockBatchRequest, LockBatchResponse, MessageQueue as WireQueue},
    codes::request,
};
use tokio::time::Instant;

use crate::{Error, MessageQueue, client::Shared, remoting::unexpected};

/// How often locks are renewed. Source: `rocketmq.client.rebalance.lockInterval`.
pub(super) const RENEWAL_PERIOD: Duration = Duration::from_secs(20);

/// How long a broker may take to answer. Source: as above, which waits 1 s.
const ANSWER_TIME: Duration = Duration::from_secs(1);

fn wire(queue: &MessageQueue) -> WireQueue {
    WireQueue {
        broker_name: queue.broker_name().into(),
        queue_id: queue.queue_id(),
        topic: queue.topic().into(),
    }
}

/// Queues by the name of their broker.
pub(super) fn by_broker<'a>(
    queues: impl IntoIterator<Item = &'a MessageQueue>,
) -> BTreeMap<&'a str, Vec<&'a MessageQueue>> {
    let mut brokers: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for queue in queues {
        brokers.entry(queue.broker_name()).or_default().push(queue);
    }
    brokers
}

impl Shared {
    /// Takes or renews the locks of some queues of one broker; returns those that were granted.
    ///
    /// # Errors
    ///
    /// What the broker or the way to it says: whether the locks are held is then unknown.
    pub(super) async fn lock_queues(
        &self,
        group: &str,
        queues: &[&MessageQueue],
    ) -> Result<BTreeSet<MessageQueue>, Error> {
        let Some(first) = queues.first() else { return Ok(BTreeSet::new()) };
        let addr = self.master_of(first).await?;
        let body = self.lock_body(group, queues);
        let request = self.remoting.request(request::LOCK_BATCH_MQ, |_| {}, body)?;
        let answer = self.remoting.call_ok(&addr, request, Instant::now() + ANSWER_TIME).await?;
        let granted: LockBatchResponse =
            body::decode(&answer.body).map_err(|error| unexpected(&addr, error))?;
        let granted = granted.lock_ok_mq_set.into_iter();
        Ok(granted.map(|q| MessageQueue::new(q.topic, q.broker_name, q.queue_id)).collect())
    }

    /// Gives the locks of some queues of one broker back.
    ///
    /// # Errors
    ///
    /// What the broker or the way to it says: it then keeps the locks for up to 60 s.
    pub(super) async fn unlock_queues(
        &self,
        group: &str,
        queues: &[&MessageQueue],
    ) -> Result<(), Error> {
        let Some(first) = queues.first() else { return Ok(()) };
        let addr = self.master_of(first).await?;
        let body = self.lock_body(group, queues);
        let request = self.remoting.request(request::UNLOCK_BATCH_MQ, |_| {}, body)?;
        self.remoting.call_ok(&addr, request, Instant::now() + ANSWER_TIME).await.map(drop)
    }

    fn lock_body(&self, group: &str, queues: &[&MessageQueue]) -> Bytes {
        let request = LockBatchRequest {
            client_id: self.client_id.clone(),
            consumer_group: group.into(),
            mq_set: queues.iter().map(|queue| wire(queue)).collect(),
            only_this_broker: false,
        };
        body::encode(&request).into()
    }

    async fn master_of(&self, queue: &MessageQueue) -> Result<String, Error> {
        self.check_open()?;
        let route = self.route(queue.topic(), self.deadline()).await?;
        let addr = route.master(queue.broker_name()).map(String::from);
        addr.ok_or_else(|| Error::NoBroker { broker_name: queue.broker_name().into() })
    }
}
