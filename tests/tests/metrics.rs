//! What an operator's monitoring sees.

#![allow(clippy::unwrap_used, reason = "an error here is a failed test")]

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::Duration,
};

use ringmq_protocol::{
    codes::{
        request::{GET_MIN_OFFSET, UPDATE_CONSUMER_OFFSET},
        response::{SERVICE_NOT_AVAILABLE, SUCCESS},
    },
    headers::{QueueRequest, UpdateConsumerOffsetRequest},
};
use ringmq_tests::{
    client::Client,
    folder::Folder,
    messages::{Pull, create_topic, max_offset, pull_all, send},
    server::{Form, Ringmq, Settings},
    wait::poll,
};

/// What a request for a path is answered: status line and body.
fn ask(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

fn get(address: SocketAddr, path: &str) -> (String, String) {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: ringmq\r\n\r\n"))
}

/// The value of a sample, its labels included in the name.
#[track_caller]
fn value(page: &str, name: &str) -> u64 {
    let sample = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    sample.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
}

fn with_metrics(settings: Settings) -> Settings {
    let arguments = ["--metrics-listen", "127.0.0.1:0"].map(str::to_owned).into();
    Settings { arguments, ..settings }
}

#[test]
fn counts_follow_what_clients_do() {
    let folder = Folder::new("metrics");
    let server = Ringmq::start(&with_metrics(Settings::new(&folder.path().join("data"))));
    let metrics = server.metrics();
    let page = || {
        let (status, page) = get(metrics, "/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        page
    };
    let before = page();
    assert_eq!(value(&before, "ringmq_messages_in_total{shard=\"0\"}"), 0);
    assert_eq!(value(&before, "ringmq_connections"), 0);

    let mut client = Client::connect(server.broker()).unwrap();
    assert_eq!(create_topic(&mut client, "topic", 1).unwrap().code, SUCCESS);
    for _ in 0..3 {
        assert_eq!(send(&mut client, "topic", 0, "key", b"body").unwrap().code, SUCCESS);
    }
    let stored = pull_all(&mut client, "topic", 0).unwrap();
    let after = page();
    assert_eq!(stored.len(), 3);
    assert_eq!(value(&after, "ringmq_messages_in_total{shard=\"0\"}"), 3);
    assert_eq!(value(&after, "ringmq_messages_out_total{shard=\"0\"}"), 3);
    let bytes = value(&after, "ringmq_message_bytes_in_total{shard=\"0\"}");
    assert!(bytes > 3 * 4, "{bytes}");
    assert_eq!(value(&after, "ringmq_message_bytes_out_total{shard=\"0\"}"), bytes);
    let flushes = value(&after, "ringmq_flushes_total{shard=\"0\"}");
    assert!(flushes >= 3 + value(&before, "ringmq_flushes_total{shard=\"0\"}"), "{flushes}");
    assert_eq!(value(&after, "ringmq_connections"), 1);
    assert_eq!(value(&after, "ringmq_parked_pulls"), 0);
    assert_eq!(value(&after, "ringmq_topics"), 1 + value(&before, "ringmq_topics"));
    assert_eq!(value(&after, "ringmq_ready"), 1);

    let wait = Pull { topic: "topic", queue: 0, offset: 3, tags: "*", hold_ms: 15_000 };
    wait.post(&mut client).unwrap();
    poll(|| (value(&page(), "ringmq_parked_pulls") == 1).then_some(())).unwrap();
    drop(client);
    poll(|| (value(&page(), "ringmq_connections") == 0).then_some(())).unwrap();
    assert_eq!(value(&page(), "ringmq_parked_pulls"), 0);
    assert!(server.stop());
}

#[test]
fn a_peer_that_takes_no_answers_is_closed_and_counted() {
    let folder = Folder::new("stalled");
    let mut settings = with_metrics(Settings::new(&folder.path().join("data")));
    settings.conf = vec!["writeTimeoutMillis=200".to_owned()];
    let server = Ringmq::start(&settings);
    let mut client = Client::connect(server.broker()).unwrap();
    assert_eq!(create_topic(&mut client, "topic", 1).unwrap().code, SUCCESS);
    let body = vec![b'x'; 1 << 20];
    assert_eq!(send(&mut client, "topic", 0, "key", &body).unwrap().code, SUCCESS);
    let mut deaf = Client::connect(server.broker()).unwrap();
    for _ in 0..64 {
        // Fails once the server has closed the connection.
        let pull = Pull { topic: "topic", queue: 0, offset: 0, tags: "*", hold_ms: 0 };
        let _ = pull.post(&mut deaf);
    }
    let stalled =
        || value(&get(server.metrics(), "/metrics").1, "ringmq_stalled_connections_total");
    poll(|| (stalled() == 1).then_some(())).unwrap();
    assert_eq!(max_offset(&mut client, "topic", 0).unwrap(), 1);
    assert!(server.stop());
}

#[test]
fn a_shard_that_takes_no_writes_makes_the_broker_not_ready() {
    let folder = Folder::new("unready");
    let mut settings = with_metrics(Settings::new(&folder.path().join("data")));
    // The system signals whoever writes beyond the limit below. Its log might be a file as well.
    settings.wrapper = Some(r#"trap '' XFSZ; exec "$0" "$@" 2>/dev/null"#);
    let server = Ringmq::start(&settings);
    assert_eq!(get(server.metrics(), "/ready"), ("HTTP/1.1 200 OK".into(), "ready\n".into()));
    let mut client = Client::connect(server.broker()).unwrap();
    assert_eq!(create_topic(&mut client, "topic", 1).unwrap().code, SUCCESS);
    assert_eq!(send(&mut client, "topic", 0, "key", b"before").unwrap().code, SUCCESS);
    assert_eq!(pull_all(&mut client, "topic", 0).unwrap().len(), 1);

    let pid = server.pid().to_string();
    let limited = Command::new("prlimit").args(["--fsize=0:", "--pid", &pid]).status().unwrap();
    assert!(limited.success());
    let refused = send(&mut client, "topic", 0, "key", b"behind").unwrap();
    assert_eq!(refused.code, SERVICE_NOT_AVAILABLE, "{:?}", refused.remark);
    let (status, why) = get(server.metrics(), "/ready");
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert!(why.starts_with("shard 0 takes no writes: "), "{why}");
    let (_, page) = get(server.metrics(), "/metrics");
    assert_eq!(value(&page, "ringmq_ready"), 0);
    assert_eq!(value(&page, "ringmq_shard_poisoned{shard=\"0\"}"), 1);
    assert_eq!(pull_all(&mut client, "topic", 0).unwrap().len(), 1, "reads go on");
}

#[test]
fn requests_are_bounded_and_anything_else_is_refused() {
    let folder = Folder::new("bounds");
    let namesrv = Settings { form: Form::Namesrv, ..Settings::new(&folder.path().join("data")) };
    let server = Ringmq::start(&with_metrics(namesrv));
    let metrics = server.metrics();
    assert_eq!(get(metrics, "/ready").0, "HTTP/1.1 200 OK");
    assert_eq!(value(&get(metrics, "/metrics").1, "ringmq_ready"), 1);
    assert_eq!(get(metrics, "/").0, "HTTP/1.1 404 Not Found");
    assert_eq!(get(metrics, "/metrics/../../etc/passwd").0, "HTTP/1.1 404 Not Found");
    let (status, _) =
        ask(metrics, "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n");
    assert_eq!(status, "HTTP/1.1 405 Method Not Allowed");
    let long = format!("GET /metrics HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(9 << 10));
    assert!(ask(metrics, &long).0.contains(" 431 "), "{:?}", ask(metrics, &long));
    assert!(ask(metrics, "no request\r\n\r\n").0.contains(" 400 "));

    // More connections than may be at a time, none of which says anything: the next is answered
    // when they are given up.
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(metrics).unwrap()).collect();
    assert_eq!(get(metrics, "/ready").0, "HTTP/1.1 200 OK");
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let ended = stream.read(&mut [0]).map_err(|error| error.kind());
        assert!(matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
    }
    assert!(server.stop());
}

#[test]
fn a_group_that_loses_unread_messages_to_the_disk_budget_is_named() {
    let folder = Folder::new("losses");
    let mut settings = with_metrics(Settings::new(&folder.path().join("data")));
    settings.conf = vec!["segmentSize=1048576".to_owned(), "diskBudget=12582912".to_owned()];
    let server = Ringmq::start(&settings);
    let mut client = Client::connect(server.broker()).unwrap();
    assert_eq!(create_topic(&mut client, "topic", 1).unwrap().code, SUCCESS);
    let send_one = |client: &mut Client| {
        let reply = send(client, "topic", 0, "key", &[b'x'; 60 << 10]).unwrap();
        assert_eq!(reply.code, SUCCESS, "{:?}", reply.remark);
    };
    (0..5).for_each(|_| send_one(&mut client));
    let commit = UpdateConsumerOffsetRequest {
        consumer_group: "slow".into(),
        topic: "topic".into(),
        queue_id: 0,
        commit_offset: 3,
    };
    let reply = client.call(UPDATE_CONSUMER_OFFSET, |out| commit.encode(out), &[]).unwrap();
    assert_eq!(reply.code, SUCCESS);
    let min_offset = |client: &mut Client| {
        let header = QueueRequest { topic: "topic".into(), queue_id: 0, committed: None };
        let reply = client.call(GET_MIN_OFFSET, |out| header.encode(out), &[]).unwrap();
        u64::try_from(reply.number("offset")).unwrap()
    };
    while min_offset(&mut client) < 50 {
        send_one(&mut client);
    }
    let page = || get(server.metrics(), "/metrics").1;
    let lost = "ringmq_lost_unread_messages_total{shard=\"0\",group=\"slow\"}";
    // Offsets are looked through after the messages have gone.
    poll(|| {
        let page = page();
        let lost = page.contains(lost).then(|| value(&page, lost))?;
        (lost + 3 == min_offset(&mut client)).then_some(())
    })
    .expect("the group has lost all from offset 3 to the first that is kept");
    let page = page();
    assert_eq!(value(&page, "ringmq_disk_budget_bytes{shard=\"0\"}"), 12_582_912);
    let used = value(&page, "ringmq_disk_used_bytes{shard=\"0\"}");
    assert!((4 << 20..=12_582_912).contains(&used), "{used}");
    assert!(value(&page, "ringmq_segments_recycled_total{shard=\"0\"}") > 1);
    assert!(server.stop());
}
