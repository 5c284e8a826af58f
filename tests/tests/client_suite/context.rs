//! What cases need: names of their own, topics, producers, and patience.

use std::{
    collections::BTreeMap,
    future::Future,
    time::{Duration, SystemTime},
};

use ringmq_client::{
    Client, Delivery, Error, Message, Producer, PushConsumerBuilder, ReceivedMessage, SendReceipt,
    StartFrom, admin::NewTopic,
};
use tokio::sync::mpsc;

/// How long a case waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// A cluster, and the name of a case.
#[derive(Clone)]
pub(crate) struct Context {
    addr: String,
    case: &'static str,
}

/// Messages that a listener got.
pub(crate) type Received = mpsc::UnboundedReceiver<ReceivedMessage>;

impl Context {
    pub(crate) fn new(addr: &str, case: &'static str) -> Self {
        Self { addr: addr.into(), case }
    }

    pub(crate) async fn client(&self) -> Client {
        let builder = Client::builder(&self.addr).call_timeout(Duration::from_secs(10));
        builder.connect().await.unwrap()
    }

    /// A name that no other case, and no earlier run, has used.
    #[expect(clippy::disallowed_methods, reason = "it only has to be another one each time")]
    pub(crate) fn fresh(&self, name: &str) -> String {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let case: String = self.case.chars().take(30).collect();
        format!("{case}-{name}-{}", since.as_nanos())
    }

    /// Creates a topic on all brokers, and waits until the name server knows it.
    pub(crate) async fn topic(&self, client: &Client, queues: i32) -> String {
        let topic = self.fresh("t");
        let info = client.admin().clusters().await.unwrap();
        for broker in info.broker_addr_table.values() {
            let new = NewTopic::new(&topic, queues);
            client.admin().create_topic(broker.master_addr().unwrap(), &new).await.unwrap();
        }
        eventually(|| async { client.admin().route(&topic).await.map(drop) }).await;
        topic
    }

    /// A push consumer's builder for a new group that starts at the first message.
    pub(crate) fn push(&self, client: &Client, group: &str, topic: &str) -> PushConsumerBuilder {
        client.push_consumer(group).subscribe(topic, "*").start_from(StartFrom::First)
    }
}

pub(crate) fn producer(client: &Client) -> Producer {
    client.producer("suite-producers").send_timeout(PATIENCE).start().unwrap()
}

/// Sends bodies `from..to`, and tells where each went.
pub(crate) async fn send(
    producer: &Producer,
    topic: &str,
    bodies: std::ops::Range<usize>,
) -> Vec<SendReceipt> {
    let mut receipts = Vec::new();
    for body in bodies {
        receipts.push(producer.send(Message::new(topic, body.to_string())).await.unwrap());
    }
    receipts
}

/// A listener that hands messages to the case.
pub(crate) fn reporting()
-> (impl Fn(Delivery) -> std::future::Ready<()> + Send + Sync + 'static, Received) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let listener = move |delivery: Delivery| {
        // The case may be over.
        delivery.into_iter().for_each(|message| drop(sender.send(message)));
        std::future::ready(())
    };
    (listener, receiver)
}

pub(crate) fn body(message: &ReceivedMessage) -> usize {
    std::str::from_utf8(message.body()).unwrap().parse().unwrap()
}

/// Waits for so many messages, and counts them by their body.
pub(crate) async fn gather(received: &mut Received, count: usize) -> BTreeMap<usize, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..count {
        *counts.entry(body(&soon(received.recv()).await.unwrap())).or_default() += 1;
    }
    counts
}

/// Each body of the range once.
pub(crate) fn once(bodies: std::ops::Range<usize>) -> BTreeMap<usize, usize> {
    bodies.map(|body| (body, 1)).collect()
}

/// Repeats something until it succeeds.
pub(crate) async fn eventually<T, F: Future<Output = Result<T, Error>>>(
    mut what: impl FnMut() -> F,
) -> T {
    let tries = async {
        loop {
            match what().await {
                Ok(value) => return value,
                Err(error) => assert!(error.retry_can_help(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(tries).await
}

/// Asks until it holds.
pub(crate) async fn until(mut holds: impl FnMut() -> bool) {
    let asked = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(asked).await;
}

pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it happens in time")
}
