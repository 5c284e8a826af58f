//! Transactions and replies, seen from a broker's side of the socket.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod fake;

use std::{
    future::Future,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use fake::{Fake, Reaction, Seen, answer, ok, refuse, route, stored};
use ringmq_client::{
    Client, Error, Invalid, Message, ReceivedMessage, SendStatus, TransactionState,
    TransactionalProducer,
};
use ringmq_protocol::{
    command::FLAG_ONEWAY,
    encode,
    frame::Encoding,
    record::{MessageParts, PropertiesParts},
};

const SEND: i32 = 310;
const REPLY: i32 = 325;
const END: i32 = 37;
const ROUTE: i32 = 105;

async fn broker(send: impl Fn(&Seen) -> Reaction + Send + Sync + 'static) -> Fake {
    Fake::start(move |own, seen| match seen.code {
        ROUTE => route(&[("a", own, 1)]),
        SEND | REPLY => send(seen),
        _ => ok(),
    })
    .await
}

async fn producer<F>(
    client: &Client,
    check: impl Fn(ReceivedMessage) -> F + Send + Sync + 'static,
) -> TransactionalProducer
where
    F: Future<Output = TransactionState> + Send + 'static,
{
    client.producer("g").start_transactional(check).unwrap()
}

#[track_caller]
fn check_end(end: &Seen, flag: &str, is_check: &str) {
    assert_eq!(end.flag & FLAG_ONEWAY, FLAG_ONEWAY);
    for (name, want) in [
        ("producerGroup", "g"),
        ("tranStateTableOffset", "7"),
        ("commitLogOffset", "4096"),
        ("commitOrRollback", flag),
        ("fromTransactionCheck", is_check),
        ("topic", "T"),
        ("bname", "a"),
    ] {
        assert_eq!(end.ext(name), want, "field {name}");
    }
}

#[tokio::test]
async fn a_half_message_is_settled_by_the_result_of_the_local_part() {
    for (state, flag) in [
        (TransactionState::Commit, "8"),
        (TransactionState::Rollback, "12"),
        (TransactionState::Unknown, "0"),
    ] {
        let fake = broker(stored).await;
        let client = Client::connect(&fake.addr).await.unwrap();
        let producer = producer(&client, |_| async { TransactionState::Unknown }).await;
        let message = Message::new("T", "x").delay_level(3).key("k");
        let local = |receipt: ringmq_client::SendReceipt| async move {
            assert_eq!(receipt.status, SendStatus::Stored);
            Ok::<_, Error>(state)
        };
        let (receipt, settled) = producer.send_in_transaction(message, local).await.unwrap();
        assert_eq!(settled, state);
        let end = fake.wait_for(END, 1).await.remove(0);
        check_end(&end, flag, "false");
        assert_eq!(end.ext("msgId"), receipt.message_id);
        let half = fake.seen(SEND).remove(0);
        assert_eq!(half.ext("f"), "4", "the sys flag of a half message");
        let properties = [("TRAN_MSG", Some("true")), ("PGROUP", Some("g")), ("DELAY", None)];
        for (name, want) in properties {
            assert_eq!(half.property(name).as_deref(), want, "{name}");
        }
    }
}

#[tokio::test]
async fn an_error_of_the_local_part_is_unknown_and_told() {
    let fake = broker(stored).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = producer(&client, |_| async { TransactionState::Unknown }).await;
    let local = |_| async { Err(std::io::Error::other("disk full")) };
    let (_, state) = producer.send_in_transaction(Message::new("T", "x"), local).await.unwrap();
    assert_eq!(state, TransactionState::Unknown);
    let end = fake.wait_for(END, 1).await.remove(0);
    check_end(&end, "0", "false");
    assert_eq!(end.remark.as_deref(), Some("disk full"));
}

#[tokio::test]
async fn a_half_message_that_is_not_safe_is_rolled_back_untried() {
    let id = "7F00000100002A9F0000000000001000";
    let fields = [("msgId", id), ("queueId", "0"), ("queueOffset", "7")];
    let fake = broker(move |_| answer(10, &fields, b"")).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = producer(&client, |_| async { TransactionState::Unknown }).await;
    let local = |_| async { unreachable!("the local part is not run") };
    let sent = producer.send_in_transaction::<_, Error>(Message::new("T", "x"), local);
    assert_eq!(sent.await.unwrap().1, TransactionState::Rollback);
    check_end(&fake.wait_for(END, 1).await.remove(0), "12", "false");
}

#[tokio::test]
async fn a_half_message_that_is_not_stored_is_an_error_and_nothing_else() {
    let fake = broker(|_| refuse(13)).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = producer(&client, |_| async { TransactionState::Unknown }).await;
    let error = producer.begin(Message::new("T", "x")).await.unwrap_err();
    assert_eq!(error.code(), Some(13));
    assert!(fake.seen(END).is_empty());
}

/// A broker's request with a half message of this group in it.
fn check_frame(group: &str) -> Vec<u8> {
    let host: SocketAddr = "127.0.0.1:10911".parse().unwrap();
    let properties = format!("UNIQ_KEY\x01HALF\x02TRAN_MSG\x01true\x02PGROUP\x01{group}");
    let parts = MessageParts {
        queue_id: 0,
        flag: 0,
        sys_flag: 4,
        born_timestamp_ms: 1_700_000_000_000,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"half",
        body_crc: None,
        topic: b"T",
        properties: PropertiesParts::default().with(properties.as_bytes()),
    };
    let mut body = vec![0; parts.encoded_len()];
    parts.write(7, 4096, 1_700_000_000_001, &mut body);
    let mut frame = Vec::new();
    encode::request(
        &mut frame,
        Encoding::Json,
        1,
        39,
        FLAG_ONEWAY,
        |ext| {
            ext.ext("bname", "a");
            ext.ext("commitLogOffset", "4096");
            ext.ext("tranStateTableOffset", "7");
            ext.ext("transactionId", "HALF");
        },
        &body,
    )
    .unwrap();
    frame
}

#[tokio::test]
async fn a_check_is_answered_by_the_groups_producer() {
    let fake = broker(stored).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let producer = producer(&client, move |message| {
        seen.lock().unwrap().push((message.message_id(), message.body().clone()));
        async { TransactionState::Commit }
    })
    .await;
    let second = client.producer("g").start_transactional(|_| async { TransactionState::Commit });
    assert!(matches!(second, Err(Error::Invalid(Invalid::GroupInUse(_)))));
    let transaction = producer.begin(Message::new("T", "x")).await.unwrap();
    drop(transaction);
    fake.push(&check_frame("other")).await;
    fake.push(&check_frame("g")).await;
    let end = fake.wait_for(END, 1).await.remove(0);
    check_end(&end, "8", "true");
    assert_eq!((end.ext("msgId"), end.ext("transactionId")), ("HALF", "HALF"));
    assert_eq!(*asked.lock().unwrap(), [("HALF".to_owned(), "half".into())]);
    assert_eq!(fake.seen(END).len(), 1, "nobody answers for another group");

    // A producer that is gone answers nothing, and makes room for another one.
    drop(producer);
    client.producer("g").start_transactional(|_| async { TransactionState::Rollback }).unwrap();
}

/// A broker's push of a reply to this request.
fn reply_frame(request: &Seen, body: &[u8]) -> Vec<u8> {
    let id = request.property("CORRELATION_ID").unwrap();
    let mut frame = Vec::new();
    let properties = format!("CORRELATION_ID\x01{id}\x02answer\x01yes");
    encode::request(
        &mut frame,
        Encoding::Json,
        1,
        326,
        0,
        |ext| {
            ext.ext("bornHost", "127.0.0.1:4711");
            ext.ext("bornTimestamp", "1700000000000");
            ext.ext("defaultTopic", "TBW102");
            ext.ext("defaultTopicQueueNums", "4");
            ext.ext("flag", "5");
            ext.ext("producerGroup", "replier");
            ext.ext("properties", &properties);
            ext.ext("queueId", "0");
            ext.ext("storeHost", "127.0.0.1:10911");
            ext.ext("storeTimestamp", "1700000000001");
            ext.ext("sysFlag", "0");
            ext.ext("topic", "C_REPLY_TOPIC");
        },
        body,
    )
    .unwrap();
    frame
}

#[tokio::test]
async fn a_request_gets_its_reply_and_the_broker_knows_the_requester() {
    let fake = broker(stored).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("g").start().unwrap();
    let requester = producer.clone();
    let ask = tokio::spawn(async move {
        requester.request(Message::new("T", "ask"), Duration::from_secs(20)).await
    });
    let request = fake.wait_for(SEND, 1).await.remove(0);
    assert_eq!(request.property("REPLY_TO_CLIENT").as_deref(), Some(client.client_id()));
    assert_eq!(request.property("TTL").as_deref(), Some("20000"));
    assert!(!fake.seen(34).is_empty(), "the broker had a heartbeat before");
    fake.push(&reply_frame(&request, b"answer")).await;
    let reply = ask.await.unwrap().unwrap();
    assert_eq!(
        (&**reply.body(), reply.property("answer"), reply.flag()),
        (&b"answer"[..], Some("yes"), 5)
    );
    assert!(reply.property("ARRIVE_TIME").is_some());
    assert_eq!(reply.born_host().port(), 4711);
    // The push itself is answered, and so is one that nobody waits for.
    fake.push(&reply_frame(&request, b"again")).await;
    fake.wait_for(0, 2).await;
}

#[tokio::test]
async fn a_request_without_a_reply_says_that_the_message_was_stored() {
    let fake = broker(stored).await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let producer = client.producer("g").start().unwrap();
    let asked = producer.request(Message::new("T", "ask"), Duration::from_millis(100)).await;
    let error = asked.unwrap_err();
    let id = fake.seen(SEND).remove(0).property("UNIQ_KEY").unwrap();
    assert!(matches!(&error, Error::NoReply { message_id } if *message_id == id), "{error}");
    assert_eq!(producer.in_flight(), 0);
}

#[tokio::test]
async fn a_reply_goes_to_the_clusters_topic_with_what_ties_it_to_the_request() {
    let fake = Fake::start(|own, seen| match seen.code {
        ROUTE => route(&[("a", own, 1)]),
        REPLY => stored(seen),
        11 => {
            let properties = "UNIQ_KEY\x01ID\x02CLUSTER\x01C\x02CORRELATION_ID\x01c1\x02\
                              REPLY_TO_CLIENT\x01someone\x02TTL\x013000";
            let host: SocketAddr = "127.0.0.1:10911".parse().unwrap();
            let parts = MessageParts {
                queue_id: 0,
                flag: 0,
                sys_flag: 0,
                born_timestamp_ms: 0,
                born_host: host,
                store_host: host,
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body: b"ask",
                body_crc: None,
                topic: b"T",
                properties: PropertiesParts::default().with(properties.as_bytes()),
            };
            let mut body = vec![0; parts.encoded_len()];
            parts.write(0, 4096, 0, &mut body);
            let fields = [
                ("suggestWhichBrokerId", "0"),
                ("nextBeginOffset", "1"),
                ("minOffset", "0"),
                ("maxOffset", "1"),
            ];
            answer(0, &fields, &body)
        }
        _ => ok(),
    })
    .await;
    let client = Client::connect(&fake.addr).await.unwrap();
    let consumer = client.pull_consumer("c").start().await.unwrap();
    let queue = consumer.queues("T").await.unwrap().remove(0);
    let pulled = consumer.pull(&queue, ringmq_client::QueueOffset::ZERO).await.unwrap();
    let producer = client.producer("g").start().unwrap();
    producer.reply(&pulled.messages[0], "answer").await.unwrap();
    let reply = fake.seen(REPLY).remove(0);
    assert_eq!((reply.ext("b"), &*reply.body), ("C_REPLY_TOPIC", &b"answer"[..]));
    for (name, want) in [
        ("CORRELATION_ID", "c1"),
        ("REPLY_TO_CLIENT", "someone"),
        ("TTL", "3000"),
        ("MSG_TYPE", "reply"),
    ] {
        assert_eq!(reply.property(name).as_deref(), Some(want));
    }
}
