//! Offsets of queues and groups: what brokers know about positions.
//!
//! Source: Apache RocketMQ 4.9.8, `MQAdminImpl`, `RemoteBrokerOffsetStore`.

use std::time::SystemTime;

use bytes::Bytes;
use ringmq_protocol::{
    codes::{request, response},
    encode::FrameWriter,
    headers::{
        OffsetResponse, QueryConsumerOffsetRequest, QueueRequest, SearchOffsetRequest,
        UpdateConsumerOffsetRequest,
    },
};
use tokio::time::Instant;

use super::Shared;
use crate::{
    Error, MessageQueue, QueueOffset, clock,
    remoting::{Answer, unexpected},
};

impl Shared {
    /// Offset of the first message that the queue still has.
    ///
    /// # Errors
    ///
    /// As [`Shared::route`], or what the broker or the way to it says.
    pub(crate) async fn min_offset(&self, queue: &MessageQueue) -> Result<QueueOffset, Error> {
        self.end_of(queue, request::GET_MIN_OFFSET).await
    }

    /// Offset that the queue's next message will have.
    ///
    /// # Errors
    ///
    /// As [`Shared::min_offset`].
    pub(crate) async fn max_offset(&self, queue: &MessageQueue) -> Result<QueueOffset, Error> {
        self.end_of(queue, request::GET_MAX_OFFSET).await
    }

    async fn end_of(&self, queue: &MessageQueue, code: i32) -> Result<QueueOffset, Error> {
        let topic = queue.topic().into();
        let header = QueueRequest { topic, queue_id: queue.queue_id(), committed: None };
        let (addr, answer) = self.ask_queue(queue, code, |ext| header.encode(ext)).await?;
        offset(&addr, &answer)
    }

    /// Offset of the first message stored at a time or later.
    ///
    /// # Errors
    ///
    /// As [`Shared::min_offset`].
    pub(crate) async fn search_offset(
        &self,
        queue: &MessageQueue,
        time: SystemTime,
    ) -> Result<QueueOffset, Error> {
        let header = SearchOffsetRequest {
            topic: queue.topic().into(),
            queue_id: queue.queue_id(),
            timestamp_ms: clock::to_epoch_ms(time),
            boundary_type: None,
        };
        let code = request::SEARCH_OFFSET_BY_TIMESTAMP;
        let (addr, answer) = self.ask_queue(queue, code, |ext| header.encode(ext)).await?;
        offset(&addr, &answer)
    }

    /// Offset that a group has committed; `None` if it has not committed any.
    ///
    /// # Errors
    ///
    /// As [`Shared::min_offset`]. An error is never "none": consumption would start over.
    pub(crate) async fn committed(
        &self,
        group: &str,
        queue: &MessageQueue,
    ) -> Result<Option<QueueOffset>, Error> {
        let header = QueryConsumerOffsetRequest {
            consumer_group: group.into(),
            topic: queue.topic().into(),
            queue_id: queue.queue_id(),
            set_zero_if_not_found: None,
        };
        let code = request::QUERY_CONSUMER_OFFSET;
        match self.ask_queue(queue, code, |ext| header.encode(ext)).await {
            Ok((addr, answer)) => offset(&addr, &answer).map(Some),
            Err(error) if error.code() == Some(response::QUERY_NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores a group's offset, and waits until the broker has it.
    ///
    /// # Errors
    ///
    /// As [`Shared::min_offset`].
    pub(crate) async fn commit(
        &self,
        group: &str,
        queue: &MessageQueue,
        offset: QueueOffset,
    ) -> Result<(), Error> {
        let header = UpdateConsumerOffsetRequest {
            consumer_group: group.into(),
            topic: queue.topic().into(),
            queue_id: queue.queue_id(),
            commit_offset: offset.get(),
        };
        let code = request::UPDATE_CONSUMER_OFFSET;
        self.ask_queue(queue, code, |ext| header.encode(ext)).await.map(drop)
    }

    /// Asks the broker that has a queue.
    async fn ask_queue(
        &self,
        queue: &MessageQueue,
        code: i32,
        ext: impl Fn(&mut FrameWriter<'_, '_>),
    ) -> Result<(String, Answer), Error> {
        let deadline = self.deadline();
        let addr = self.addr_of(queue, deadline).await?;
        let request = self.remoting.request(code, ext, Bytes::new())?;
        let answer = self.remoting.call_ok(&addr, request, deadline).await?;
        Ok((addr, answer))
    }

    /// Where to read a queue.
    ///
    /// # Errors
    ///
    /// As [`Shared::route`]; [`Error::NoBroker`] if no address of its broker is known.
    pub(crate) async fn addr_of(
        &self,
        queue: &MessageQueue,
        deadline: Instant,
    ) -> Result<String, Error> {
        self.check_open()?;
        let route = self.route(queue.topic(), deadline).await?;
        let addr = route.readable(queue.broker_name()).map(String::from);
        addr.ok_or_else(|| Error::NoBroker { broker_name: queue.broker_name().into() })
    }
}

fn offset(addr: &str, answer: &Answer) -> Result<QueueOffset, Error> {
    let command = answer.parse(addr)?;
    let header = OffsetResponse::decode(&command).map_err(|error| unexpected(addr, error))?;
    Ok(QueueOffset::new(header.offset))
}
