//! Transactions: a message that consumers see only if something else succeeded as well.
//!
//! A half message is stored first, where consumers do not see it. Then the application does its
//! part, and its result commits the message or rolls it back. If that result never reaches the
//! broker, the broker asks for it: any producer of the group may be the one that answers.
//!
//! Source: Apache RocketMQ 4.9.8, `DefaultMQProducerImpl.sendMessageInTransaction`,
//! `checkTransactionState`, `endTransaction`.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use ringmq_protocol::{
    codes::request,
    headers::{CheckTransactionRequest, EndTransactionRequest},
    message_id::OffsetMessageId,
    properties::name,
    record::sys_flag,
};
use tokio::time::Instant;

use super::{
    Inner, Producer, ProducerBuilder, SendReceipt, SendStatus, Target, outbound::Outbound,
};
use crate::{
    Error, Invalid, Message, ReceivedMessage,
    client::Shared,
    lock, message,
    remoting::{Inbound, Reply, unexpected},
    trace::{self, Tracer},
};

/// What became of the application's part of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionState {
    /// It succeeded: consumers get the message.
    Commit,
    /// It failed: nobody gets the message.
    Rollback,
    /// It is not known yet: the broker asks again, by default every 30 to 60 s and up to 15 times.
    Unknown,
}

impl TransactionState {
    const fn flag(self) -> i32 {
        match self {
            Self::Commit => sys_flag::TRANSACTION_COMMIT,
            Self::Rollback => sys_flag::TRANSACTION_ROLLBACK,
            Self::Unknown => 0,
        }
    }

    /// Upstream's name. Source: Apache RocketMQ 4.9.8, `LocalTransactionState`.
    const fn name(self) -> &'static str {
        match self {
            Self::Commit => "COMMIT_MESSAGE",
            Self::Rollback => "ROLLBACK_MESSAGE",
            Self::Unknown => "UNKNOW",
        }
    }
}

type Checking = Pin<Box<dyn Future<Output = TransactionState> + Send>>;
type Check = Arc<dyn Fn(ReceivedMessage) -> Checking + Send + Sync>;

/// Who knows what became of the transactions of which group.
#[derive(Default)]
pub(crate) struct Checks {
    by_group: Mutex<HashMap<String, Checker>>,
}

/// A group's check, and what takes traces of its answers.
#[derive(Clone)]
struct Checker {
    check: Check,
    tracer: Option<Arc<Tracer>>,
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(lock(&self.by_group).keys()).finish()
    }
}

/// A producer whose messages can be part of transactions. Made by
/// [`ProducerBuilder::start_transactional`]; also sends as [`Producer`] does.
///
/// ```no_run
/// # async fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
/// use ringmq_client::{Message, TransactionState};
///
/// let builder = client.producer("orders-producer");
/// let producer = builder.start_transactional(|message| async move {
///     // Ask the database whether the order with this key exists.
///     println!("what became of {:?}?", message.keys().next());
///     TransactionState::Unknown
/// })?;
/// let message = Message::new("Orders", "paid").key("order-17");
/// let (receipt, state) = producer
///     .send_in_transaction(message, |receipt| async move {
///         println!("half message {}", receipt.message_id);
///         Ok::<_, std::io::Error>(TransactionState::Commit)
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TransactionalProducer {
    producer: Producer,
    _enlisted: Arc<Enlisted>,
}

/// Takes the group's check off the list when the last handle is dropped.
#[derive(Debug)]
struct Enlisted {
    inner: Arc<Inner>,
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        lock(&self.inner.client.shared.checks.by_group).remove(&self.inner.group);
    }
}

/// A half message, and the right to settle it. Dropped without that, it is settled by the broker's
/// question.
#[derive(Debug)]
#[must_use = "the broker asks what became of a transaction that is not settled"]
pub struct Transaction {
    inner: Arc<Inner>,
    topic: Arc<str>,
    transaction_id: Option<String>,
    receipt: SendReceipt,
    tag: Option<String>,
    keys: String,
}

impl ProducerBuilder {
    /// Starts the producer for transactions. Brokers ask `check` what became of those that were not
    /// settled, also of other producers of the group and earlier runs, so it has to look where the
    /// application's part is stored.
    ///
    /// # Errors
    ///
    /// As [`ProducerBuilder::start`]; [`Invalid::GroupInUse`] if this client has such a producer of
    /// the group already.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::TransactionState;
    ///
    /// let producer = client
    ///     .producer("orders-producer")
    ///     .start_transactional(|_message| async { TransactionState::Rollback })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_transactional<F>(
        self,
        check: impl Fn(ReceivedMessage) -> F + Send + Sync + 'static,
    ) -> Result<TransactionalProducer, Error>
    where
        F: Future<Output = TransactionState> + Send + 'static,
    {
        let producer = self.start()?;
        let inner = Arc::clone(&producer.inner);
        let mut checks = lock(&inner.client.shared.checks.by_group);
        if checks.contains_key(&inner.group) {
            return Err(Invalid::GroupInUse(inner.group.clone()).into());
        }
        let check: Check = Arc::new(move |message| Box::pin(check(message)));
        let tracer = inner.tracer.clone();
        checks.insert(inner.group.clone(), Checker { check, tracer });
        drop(checks);
        Ok(TransactionalProducer { producer, _enlisted: Arc::new(Enlisted { inner }) })
    }
}

impl TransactionalProducer {
    /// The producer, for what is part of no transaction.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::TransactionalProducer)
    /// # -> Result<(), ringmq_client::Error> {
    /// producer.producer().send(ringmq_client::Message::new("Log", "started")).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Stores a half message, runs the application's part, and settles the message by its result.
    /// An error of it counts as unknown, and the broker is told its text.
    ///
    /// If the half message was stored, but not flushed or replicated in time, it is rolled back and
    /// the application's part is not run.
    ///
    /// # Errors
    ///
    /// Those of [`Producer::send`], and then the application's part was not run. That the broker
    /// could not be told how it went is no error: it will ask.
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::TransactionalProducer)
    /// # -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::{Message, TransactionState};
    ///
    /// let message = Message::new("Orders", "paid").key("order-17");
    /// let paid = producer.send_in_transaction(message, |_| async {
    ///     // Write to the database.
    ///     Ok::<_, std::io::Error>(TransactionState::Commit)
    /// });
    /// let (receipt, state) = paid.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_in_transaction<F, E>(
        &self,
        message: Message,
        local: impl FnOnce(SendReceipt) -> F,
    ) -> Result<(SendReceipt, TransactionState), Error>
    where
        F: Future<Output = Result<TransactionState, E>>,
        E: fmt::Display,
    {
        let transaction = self.begin(message).await?;
        let receipt = transaction.receipt.clone();
        if receipt.status != SendStatus::Stored {
            transaction.settle(TransactionState::Rollback, None).await;
            return Ok((receipt, TransactionState::Rollback));
        }
        let (state, remark) = match local(receipt.clone()).await {
            Ok(state) => (state, None),
            Err(error) => (TransactionState::Unknown, Some(error.to_string())),
        };
        transaction.settle(state, remark.as_deref()).await;
        Ok((receipt, state))
    }

    /// Stores a half message. The application does its part then, and settles the message.
    ///
    /// # Errors
    ///
    /// Those of [`Producer::send`].
    ///
    /// ```no_run
    /// # async fn example(producer: ringmq_client::TransactionalProducer)
    /// # -> Result<(), ringmq_client::Error> {
    /// let message = ringmq_client::Message::new("Orders", "paid").key("order-17");
    /// let transaction = producer.begin(message).await?;
    /// // Write to the database, then:
    /// transaction.commit().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn begin(&self, message: Message) -> Result<Transaction, Error> {
        let inner = &self.producer.inner;
        let deadline = Instant::now() + inner.send_timeout;
        let message = message
            .without_delay()
            .system(name::TRAN_MSG, "true")
            .system(name::PGROUP, inner.group.clone());
        let outbound = Outbound::half(&message, &inner.client.shared.unique_ids, &inner.form)?;
        let _permit = inner.enter(outbound.len(), deadline).await?;
        let sent = inner.deliver_with_details(&outbound, Target::of(&message), deadline).await?;
        Ok(Transaction {
            inner: Arc::clone(inner),
            topic: Arc::clone(&outbound.topic),
            transaction_id: sent.transaction_id,
            receipt: sent.receipt,
            tag: message.tag_text().map(Into::into),
            keys: message.keys_text().into(),
        })
    }
}

impl Transaction {
    /// Where the half message is stored.
    ///
    /// ```no_run
    /// # fn example(transaction: &ringmq_client::Transaction) {
    /// println!("half message {}", transaction.receipt().message_id);
    /// # }
    /// ```
    pub const fn receipt(&self) -> &SendReceipt {
        &self.receipt
    }

    /// Gives the message to consumers. The broker is told once and does not answer; should that get
    /// lost, it asks the group's check.
    ///
    /// ```no_run
    /// # async fn example(transaction: ringmq_client::Transaction) {
    /// transaction.commit().await;
    /// # }
    /// ```
    pub async fn commit(self) {
        self.settle(TransactionState::Commit, None).await;
    }

    /// Drops the message. Otherwise as [`Transaction::commit`].
    ///
    /// ```no_run
    /// # async fn example(transaction: ringmq_client::Transaction) {
    /// transaction.rollback().await;
    /// # }
    /// ```
    pub async fn rollback(self) {
        self.settle(TransactionState::Rollback, None).await;
    }

    async fn settle(self, state: TransactionState, remark: Option<&str>) {
        if let Err(error) = self.try_settle(state, remark).await {
            tracing::warn!(id = self.receipt.message_id, ?state, %error,
                "could not settle a transaction, the broker will ask");
        }
    }

    async fn try_settle(&self, state: TransactionState, remark: Option<&str>) -> Result<(), Error> {
        let shared = &self.inner.client.shared;
        let deadline = Instant::now() + self.inner.send_timeout;
        let (receipt, broker_name) = (&self.receipt, self.receipt.queue.broker_name());
        let route = shared.publish_route(&self.topic, deadline).await?;
        let addr = route.master(broker_name);
        let addr = addr.ok_or_else(|| Error::NoBroker { broker_name: broker_name.into() })?;
        let id = OffsetMessageId::parse(&receipt.offset_message_id)
            .ok_or_else(|| unexpected(addr, "no position of a half message"))?;
        let header = EndTransactionRequest {
            producer_group: self.inner.group.as_str().into(),
            tran_state_table_offset: receipt.queue_offset.get(),
            commit_log_offset: id.log_offset,
            commit_or_rollback: state.flag(),
            from_transaction_check: false,
            msg_id: Some(receipt.message_id.as_str().into()),
            transaction_id: self.transaction_id.as_deref().map(Into::into),
            topic: Some((&*self.topic).into()),
            broker_name: Some(broker_name.into()),
        };
        end(shared, addr, &header, remark, deadline).await?;
        if let Some(tracer) = &self.inner.tracer {
            tracer.settled(&trace::Settled {
                group: &shared.namespace.unwrap(&self.inner.group),
                topic: &shared.namespace.unwrap(&self.topic),
                message_id: &receipt.message_id,
                tag: self.tag.as_deref(),
                keys: &self.keys,
                addr,
                transaction_id: self.transaction_id.as_deref(),
                state: state.name(),
                is_asked: false,
            });
        }
        Ok(())
    }
}

async fn end(
    shared: &Shared,
    addr: &str,
    header: &EndTransactionRequest<'_>,
    remark: Option<&str>,
    deadline: Instant,
) -> Result<(), Error> {
    let code = request::END_TRANSACTION;
    let request =
        shared.remoting.oneway_with_remark(code, remark, |ext| header.encode(ext), Bytes::new())?;
    shared.remoting.oneway(addr, request, deadline).await
}

/// CHECK_TRANSACTION_STATE (39): a broker asks what became of a transaction.
pub(crate) async fn check(shared: Arc<Shared>, inbound: Inbound) -> Reply {
    if let Err(error) = answer_check(&shared, &inbound).await {
        tracing::warn!(addr = &*inbound.addr, %error, "could not answer a transaction check");
    }
    Reply::ok(Bytes::new())
}

async fn answer_check(shared: &Shared, inbound: &Inbound) -> Result<(), Error> {
    let addr = &*inbound.addr;
    let command = inbound.command().map_err(|error| unexpected(addr, error))?;
    let header =
        CheckTransactionRequest::decode(&command).map_err(|error| unexpected(addr, error))?;
    let broker_name = header.broker_name.as_deref().unwrap_or_default();
    let messages = message::parse_all(&inbound.body, broker_name);
    let message = messages.map_err(|error| unexpected(addr, error))?.pop();
    let message = message.ok_or_else(|| unexpected(addr, "no half message"))?;
    let group = message.property(name::PGROUP).unwrap_or_default().to_owned();
    let check = lock(&shared.checks.by_group).get(&group).cloned();
    let Some(Checker { check, tracer }) = check else {
        tracing::debug!(addr, group, "a check of a group that is not here");
        return Ok(());
    };
    let topic = message.topic().to_owned();
    let message_id = message.message_id();
    let asked = message.unwrapped(&shared.namespace);
    let state = check(asked.clone()).await;
    let answer = EndTransactionRequest {
        producer_group: group.into(),
        tran_state_table_offset: header.tran_state_table_offset,
        commit_log_offset: header.commit_log_offset,
        commit_or_rollback: state.flag(),
        from_transaction_check: true,
        msg_id: Some(message_id.into()),
        transaction_id: header.transaction_id.clone(),
        topic: Some(topic.into()),
        broker_name: header.broker_name.clone(),
    };
    end(shared, addr, &answer, None, shared.deadline()).await?;
    if let Some(tracer) = tracer {
        tracer.settled(&trace::Settled {
            group: &shared.namespace.unwrap(&answer.producer_group),
            topic: asked.topic(),
            message_id: answer.msg_id.as_deref().unwrap_or_default(),
            tag: asked.tag(),
            keys: asked.property(name::KEYS).unwrap_or_default(),
            addr,
            transaction_id: answer.transaction_id.as_deref(),
            state: state.name(),
            is_asked: true,
        });
    }
    Ok(())
}
