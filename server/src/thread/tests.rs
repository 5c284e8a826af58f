//! A broker's data threads with real sockets and a real store, and a control plane of a few lines.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use clap::Parser;
use ringmq_protocol::{
    codes::{request, response},
    command::{Command, FLAG_ONEWAY},
    encode,
    frame::{self, Encoding, FRAME_LEN_MAX},
    headers::{PullRequest, SendRequest},
    record::{MessageView, records},
};
use tokio::sync::mpsc;

use super::plane::{Plane, Wiring};
use crate::{
    config::{BrokerConfig, Config, cli::Cli},
    context::AllowAll,
    control::{
        Catalog, CreateTopicError, FilterType, GroupConfig, GroupView, Groups, NewTopic, Published,
        ToControl, TopicConfig,
    },
};

mod link;
mod offsets;
mod pull;
mod query;
mod send;

/// A folder that goes when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringmq-thread-test-{}-{number}", std::process::id());
        // Tests want a file system that takes direct writes, which /tmp may not be.
        let base =
            std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, Into::into);
        Self(base.join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Data threads and their small control plane.
struct Broker {
    plane: Option<Plane>,
    addr: SocketAddr,
    control: Option<JoinHandle<()>>,
    /// Requests that came to the control plane, by code.
    seen: Arc<Mutex<BTreeMap<i32, usize>>>,
    published: Arc<Published>,
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut plane) = self.plane.take() {
            let failed = plane.stop();
            drop(plane);
            if let Some(control) = self.control.take() {
                control.join().expect("the control thread panicked");
            }
            if !std::thread::panicking() {
                assert_eq!(failed, [""; 0]);
            }
        }
    }
}

impl Broker {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        Self::start_with(dir, arguments, |_| ())
    }

    fn start_with(dir: &Path, arguments: &[&str], change: impl FnOnce(&mut BrokerConfig)) -> Self {
        let data = dir.to_str().unwrap();
        let fixed = ["ringmq", "--data", data, "--listen", "127.0.0.1:0"];
        let cli = Cli::try_parse_from([&fixed, arguments].concat()).unwrap();
        let mut config = Config::load(&cli).unwrap().broker.unwrap();
        // Small segments are prepared quickly.
        config.segment_len = Some(64 << 20);
        change(&mut config);
        let published = Arc::new(Published::empty());
        let (to_control, received) = mpsc::channel(64);
        let wiring =
            Wiring { published: published.clone(), authorizer: Arc::new(AllowAll), to_control };
        let mut plane = Plane::start(config, wiring).unwrap();
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let control = {
            let (published, seen) = (published.clone(), seen.clone());
            std::thread::spawn(move || control(received, &published, &seen))
        };
        plane.accept();
        let addr = plane.local_addr;
        Self { plane: Some(plane), addr, control: Some(control), seen, published }
    }

    fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    fn with_topic(self, name: &str, queues: u32) -> Self {
        publish(&self.published, name, queues);
        self
    }
}

fn publish(published: &Published, name: &str, queues: u32) {
    let mut catalog = Catalog::clone(&published.catalog.load());
    let topic = TopicConfig {
        name: name.into(),
        read_queue_nums: queues,
        write_queue_nums: queues,
        perm: 6,
        sys_flag: 0,
        filter_type: FilterType::SingleTag,
        order: false,
    };
    catalog.topics.insert(name.into(), Arc::new(topic));
    published.catalog.store(Arc::new(catalog));
}

/// Creates topics and groups on demand, and counts everything else.
fn control(
    mut received: mpsc::Receiver<ToControl>,
    published: &Published,
    seen: &Mutex<BTreeMap<i32, usize>>,
) {
    while let Some(message) = received.blocking_recv() {
        match message {
            ToControl::Request { frame, .. } => {
                let frame = frame::decode(&frame, FRAME_LEN_MAX).unwrap().unwrap();
                let command = Command::parse(frame.encoding, frame.header).unwrap();
                *seen.lock().unwrap().entry(command.code).or_default() += 1;
            }
            ToControl::CreateTopic { topic, how, reply } => {
                let queues = match how {
                    NewTopic::FromTemplate { queue_nums, .. } => queue_nums.unsigned_abs(),
                    NewTopic::OfGroup { queue_nums, .. } => queue_nums,
                };
                let answer = if topic.starts_with("Refused") {
                    Err(CreateTopicError::NoTemplate)
                } else {
                    publish(published, &topic, queues);
                    Ok(published.catalog.load().topic(&topic).unwrap().clone())
                };
                let _ = reply.send(answer);
            }
            ToControl::EnsureGroup { group, reply } => {
                let config = (!group.starts_with("Refused")).then(|| {
                    let mut groups = Groups::clone(&published.groups.load());
                    let config = Arc::new(GroupConfig::new((&*group).into()));
                    let view = GroupView::offline(Some(config.clone()));
                    groups.groups.insert((&*group).into(), Arc::new(view));
                    published.groups.store(Arc::new(groups));
                    config
                });
                let _ = reply.send(config);
            }
            ToControl::Closed { .. } => {}
        }
    }
}

/// An answer, with its entries by name.
#[derive(Debug)]
struct Got {
    code: i32,
    opaque: i32,
    remark: String,
    ext: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Got {
    fn number(&self, name: &str) -> i64 {
        self.ext[name].parse().unwrap()
    }

    fn messages(&self) -> Vec<MessageView<'_>> {
        records(&self.body).map(Result::unwrap).collect()
    }

    #[track_caller]
    fn ok(self) -> Self {
        assert_eq!(self.code, response::SUCCESS, "{self:?}");
        self
    }
}

/// A connection that sends whole frames and reads answers.
struct Client {
    stream: TcpStream,
    encoding: Encoding,
    version: i32,
    next_opaque: i32,
    buffer: Vec<u8>,
}

impl Client {
    fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream, encoding: Encoding::Json, version: 409, next_opaque: 1, buffer: Vec::new() }
    }

    /// A frame with a number of its own.
    fn frame(
        &mut self,
        code: i32,
        flag: i32,
        ext: impl FnOnce(&mut encode::FrameWriter<'_, '_>),
        body: &[u8],
    ) -> (i32, Vec<u8>) {
        let opaque = self.next_opaque;
        self.next_opaque += 1;
        let mut out = Vec::new();
        let head = encode::Head {
            version: self.version,
            ..encode::Head::request(self.encoding, opaque, code, flag)
        };
        let mut writer = encode::begin_frame(&mut out, head);
        ext(&mut writer);
        writer.finish(body.len()).unwrap();
        out.extend_from_slice(body);
        (opaque, out)
    }

    fn put(
        &mut self,
        code: i32,
        ext: impl FnOnce(&mut encode::FrameWriter<'_, '_>),
        body: &[u8],
    ) -> i32 {
        let (opaque, frame) = self.frame(code, 0, ext, body);
        self.stream.write_all(&frame).unwrap();
        opaque
    }

    fn get(&mut self) -> Got {
        loop {
            if let Some(frame) = frame::decode(&self.buffer, FRAME_LEN_MAX).unwrap() {
                let command = Command::parse(frame.encoding, frame.header).unwrap();
                assert!(command.is_response());
                assert_eq!(frame.encoding, self.encoding, "answers come as requests are written");
                let got = Got {
                    code: command.code,
                    opaque: command.opaque,
                    remark: command.remark.clone().unwrap_or_default().into_owned(),
                    ext: command
                        .ext
                        .iter()
                        .map(|(k, v)| (k.into_owned(), v.into_owned()))
                        .collect(),
                    body: frame.body.to_vec(),
                };
                let len = frame.total_len;
                self.buffer.drain(..len);
                return got;
            }
            let mut chunk = vec![0; 256 << 10];
            let len = match self.stream.read(&mut chunk) {
                // A signal to the process says nothing about the broker.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.expect("an answer in time"),
            };
            assert_ne!(len, 0, "the broker closed the connection");
            self.buffer.extend_from_slice(&chunk[..len]);
        }
    }

    fn call(
        &mut self,
        code: i32,
        ext: impl FnOnce(&mut encode::FrameWriter<'_, '_>),
        body: &[u8],
    ) -> Got {
        let opaque = self.put(code, ext, body);
        let got = self.get();
        assert_eq!(got.opaque, opaque);
        got
    }

    fn send(&mut self, topic: &str, queue_id: i32, properties: &str, body: &[u8]) -> Got {
        let header = send_header(topic, queue_id, properties);
        self.call(request::SEND_MESSAGE_V2, |ext| header.encode(310, ext), body)
    }

    fn pull(&mut self, topic: &str, queue_id: i32, from: i64) -> Got {
        let header = pull_header(topic, queue_id, from);
        self.call(request::PULL_MESSAGE, |ext| header.encode(ext), &[])
    }

    fn offset(&mut self, code: i32, group: &str, topic: &str, queue_id: i32) -> Got {
        self.call(code, |ext| offset_ext(ext, group, topic, queue_id, None), &[])
    }

    fn commit(&mut self, group: &str, topic: &str, queue_id: i32, value: i64) -> Got {
        let ext = |ext: &mut encode::FrameWriter<'_, '_>| {
            offset_ext(ext, group, topic, queue_id, Some(value));
        };
        self.call(request::UPDATE_CONSUMER_OFFSET, ext, &[])
    }

    fn commit_oneway(&mut self, group: &str, topic: &str, queue_id: i32, value: i64) {
        let ext = |ext: &mut encode::FrameWriter<'_, '_>| {
            offset_ext(ext, group, topic, queue_id, Some(value));
        };
        let (_, frame) = self.frame(request::UPDATE_CONSUMER_OFFSET, FLAG_ONEWAY, ext, &[]);
        self.stream.write_all(&frame).unwrap();
    }
}

fn offset_ext(
    ext: &mut encode::FrameWriter<'_, '_>,
    group: &str,
    topic: &str,
    queue_id: i32,
    value: Option<i64>,
) {
    ext.ext("consumerGroup", group);
    ext.ext("topic", topic);
    ext.ext_int("queueId", queue_id.into());
    if let Some(value) = value {
        ext.ext_int("commitOffset", value);
    }
}

fn send_header<'a>(topic: &'a str, queue_id: i32, properties: &'a str) -> SendRequest<'a> {
    SendRequest {
        producer_group: "PG".into(),
        topic: topic.into(),
        default_topic: "TBW102".into(),
        default_topic_queue_nums: 4,
        queue_id,
        sys_flag: 0,
        born_timestamp_ms: 1_700_000_000_000,
        flag: 5,
        properties: Some(properties.into()),
        reconsume_times: 0,
        unit_mode: false,
        max_reconsume_times: None,
        batch: false,
        broker_name: None,
    }
}

fn pull_header<'a>(topic: &'a str, queue_id: i32, from: i64) -> PullRequest<'a> {
    PullRequest {
        consumer_group: "CG".into(),
        topic: topic.into(),
        queue_id,
        queue_offset: from,
        max_msg_nums: 32,
        sys_flag: 4,
        commit_offset: 0,
        suspend_timeout_ms: 0,
        subscription: Some("*".into()),
        sub_version: 0,
        expression_type: None,
        max_msg_bytes: None,
        request_source: None,
        proxy_forward_client_id: None,
    }
}
