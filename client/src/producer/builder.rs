//! How a producer is set up.

use std::{sync::Arc, time::Duration};

use ringmq_protocol::{limits::MESSAGE_LEN_MAX, names::TRACE_TOPIC};

use super::{
    Inner, Producer,
    batching::{Batcher, Batching},
    fault::{Faults, LatencyRule},
    gate::Gate,
    heads::Heads,
    outbound::Form,
    reply::Greeted,
};
use crate::{Client, Compression, Error, observe::Sends, trace::Tracer};

/// How a producer is set up. Made by [`Client::producer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it starts"]
pub struct ProducerBuilder {
    client: Client,
    group: String,
    retries: u32,
    send_timeout: Duration,
    attempt_timeout: Option<Duration>,
    retries_if_not_stored: bool,
    body_len_max: usize,
    in_flight_max: u32,
    in_flight_len_max: usize,
    compression: Option<Compression>,
    compression_level: u32,
    compressed_len_min: usize,
    latency_rule: LatencyRule,
    latency_faults: bool,
    batching: Option<Batching>,
    trace_topic: Option<String>,
}

impl ProducerBuilder {
    pub(crate) fn new(client: Client, group: &str) -> Self {
        Self {
            client,
            group: group.into(),
            retries: 2,
            send_timeout: Duration::from_secs(3),
            attempt_timeout: None,
            retries_if_not_stored: false,
            body_len_max: MESSAGE_LEN_MAX,
            in_flight_max: 1024,
            in_flight_len_max: 64 * 1024 * 1024,
            compression: Some(Compression::Zlib),
            compression_level: 5,
            compressed_len_min: 4096,
            latency_rule: LatencyRule::default(),
            latency_faults: false,
            batching: None,
            trace_topic: None,
        }
    }

    /// How often a failed send is tried again; twice unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").retries(5).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// How long a send may take, all attempts together; 3 s unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use std::time::Duration;
    ///
    /// let producer =
    ///     client.producer("orders-producer").send_timeout(Duration::from_secs(10)).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn send_timeout(mut self, timeout: Duration) -> Self {
        self.send_timeout = timeout;
        self
    }

    /// How long one attempt may take, so that there is time for another broker when one is silent.
    /// Unless set, an attempt has all the time that is left.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use std::time::Duration;
    ///
    /// let producer =
    ///     client.producer("orders-producer").attempt_timeout(Duration::from_secs(1)).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = Some(timeout);
        self
    }

    /// Whether a message is sent to another broker as well if the first one stored it but did not
    /// flush or replicate it in time. It may exist twice then. No unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").retry_if_not_stored(true).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn retry_if_not_stored(mut self, retries: bool) -> Self {
        self.retries_if_not_stored = retries;
        self
    }

    /// Longest body or batch, in bytes; 4 MiB unless set. The broker's own limit holds as well.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").body_len_max(64 * 1024).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn body_len_max(mut self, len: usize) -> Self {
        self.body_len_max = len;
        self
    }

    /// Most sends that wait for an answer at one time, at least 1; 1,024 unless set. Further ones
    /// wait for their turn, and their time runs.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").in_flight_max(64).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn in_flight_max(mut self, count: u32) -> Self {
        self.in_flight_max = count;
        self
    }

    /// Most bytes of messages that wait for an answer at one time; 64 MiB unless set, rounded to KiB.
    /// A message longer than that is sent when it is alone.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").in_flight_len_max(8 << 20).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn in_flight_len_max(mut self, len: usize) -> Self {
        self.in_flight_len_max = len;
        self
    }

    /// How bodies are compressed, or that they are not; by zlib unless set. Batches never are.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").compression(None).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn compression(mut self, compression: impl Into<Option<Compression>>) -> Self {
        self.compression = compression.into();
        self
    }

    /// How hard to compress, 0 to 9; 5 unless set. LZ4 has one level only.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").compression_level(1).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn compression_level(mut self, level: u32) -> Self {
        self.compression_level = level;
        self
    }

    /// Shortest body that is compressed, in bytes; 4,096 unless set. One that would not get shorter
    /// is sent as it is.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").compressed_len_min(64 * 1024).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn compressed_len_min(mut self, len: usize) -> Self {
        self.compressed_len_min = len;
        self
    }

    /// Whether brokers that were slow or failed are left out for a while; no unless set. See
    /// [`Producer::set_latency_faults`].
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").latency_faults(true).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn latency_faults(mut self, is_on: bool) -> Self {
        self.latency_faults = is_on;
        self
    }

    /// By which rule slow brokers are left out; that of 5.x unless set.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::LatencyRule;
    ///
    /// let builder = client.producer("orders-producer").latency_faults(true);
    /// let producer = builder.latency_rule(LatencyRule::V4).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn latency_rule(mut self, rule: LatencyRule) -> Self {
        self.latency_rule = rule;
        self
    }

    /// Puts single sends together into batches, which keeps the order of each queue; off unless set.
    /// Many more messages fit through that way, as soon as several are in flight. Delayed messages
    /// and those that are part of transactions stay single, and long ones that are compressed.
    ///
    /// A send whose future is dropped may be on its way all the same.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// use ringmq_client::Batching;
    ///
    /// let producer = client.producer("clicks").batching(Batching::new()).start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn batching(mut self, batching: Batching) -> Self {
        self.batching = Some(batching);
        self
    }

    /// Leaves a trace of each message in the brokers' trace topic, `RMQ_SYS_TRACE_TOPIC`, which
    /// upstream's tools read; off unless set. Traces never hold up messages: under load some are
    /// dropped.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").traced().start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn traced(self) -> Self {
        self.traced_in(TRACE_TOPIC)
    }

    /// As [`ProducerBuilder::traced`], in a topic of one's own.
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").traced_in("OrderTraces").start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn traced_in(mut self, topic: &str) -> Self {
        self.trace_topic = Some(topic.into());
        self
    }

    /// Starts the producer. Brokers are looked for when the first message is sent.
    ///
    /// # Errors
    ///
    /// [`Invalid::Group`](crate::Invalid::Group) or [`Error::Closed`].
    ///
    /// ```no_run
    /// # fn example(client: ringmq_client::Client) -> Result<(), ringmq_client::Error> {
    /// let producer = client.producer("orders-producer").start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(self) -> Result<Producer, Error> {
        let shared = &self.client.shared;
        shared.check_open()?;
        let group = shared.namespace.wrap(&self.group).into_owned();
        shared.groups.join_as_producer(&group)?;
        let form = Form {
            namespace: shared.namespace.clone(),
            body_len_max: self.body_len_max,
            compression: self.compression,
            compression_level: self.compression_level,
            compressed_len_min: self.compressed_len_min,
            is_traced: self.trace_topic.is_some(),
        };
        let topic = self.trace_topic.as_deref();
        let tracer = topic.map(|topic| Tracer::start(&self.client, &self.group, "PRODUCE", topic));
        let tracer = tracer.transpose()?.map(Arc::new);
        let figures = Sends::new(&group);
        let inner = Inner {
            client: self.client,
            group,
            retries: self.retries,
            send_timeout: self.send_timeout,
            attempt_timeout: self.attempt_timeout,
            retries_if_not_stored: self.retries_if_not_stored,
            form,
            gate: Arc::new(Gate::new(self.in_flight_max, self.in_flight_len_max)),
            faults: Faults::new(self.latency_rule, self.latency_faults),
            greeted: Greeted::default(),
            heads: Heads::default(),
            batcher: self.batching.map(Batcher::new),
            tracer,
            figures,
        };
        Ok(Producer { inner: Arc::new(inner) })
    }
}
