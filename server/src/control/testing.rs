//! What the tests of the control plane and the name server share.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use ringmq_protocol::{
    command::Command,
    frame::{self, FRAME_LEN_MAX},
};

use super::{BrokerControlConfig, broker::Broker};

/// A broker with the defaults of upstream and no name servers.
pub(crate) fn broker_config() -> BrokerControlConfig {
    BrokerControlConfig {
        cluster_name: "DefaultCluster".into(),
        broker_name: "broker-a".into(),
        broker_id: 0,
        advertised_addr: "127.0.0.1:10911".into(),
        ha_server_addr: "127.0.0.1:10912".into(),
        namesrv_addrs: Vec::new(),
        register_period: Duration::from_secs(30),
        auto_create_topic: true,
        auto_create_group: true,
        cluster_topic: true,
        broker_topic: true,
        trace_topic: false,
        trace_topic_name: "RMQ_SYS_TRACE_TOPIC".into(),
        default_topic_queue_nums: 8,
        permission: 6,
        notify_consumer_ids_changed: true,
        compressed_register: false,
        snapshot_dir: None,
    }
}

/// A broker as it starts on an empty store.
pub(crate) fn broker() -> Broker {
    Broker::restore(broker_config(), [], 1_700_000_000_000).expect("no facts, no damage")
}

/// A frame recorded between real clients and servers.
pub(crate) struct Recorded {
    pub(crate) response: bool,
    pub(crate) to_namesrv: bool,
    /// The request code, of an answer too.
    pub(crate) request: i32,
    pub(crate) code: i32,
    pub(crate) remark: Option<String>,
    pub(crate) bytes: Vec<u8>,
}

impl Recorded {
    /// The frame's body as text.
    pub(crate) fn body(&self) -> &str {
        let frame = frame::decode(&self.bytes, FRAME_LEN_MAX).expect("recorded frames are whole");
        str::from_utf8(frame.expect("recorded frames are whole").body).expect("the body is text")
    }
}

/// The frames of one file of `protocol/tests/data/frames`.
pub(crate) fn recorded(file: &str) -> Vec<Recorded> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/tests/data/frames");
    let text = std::fs::read_to_string(dir.join(file)).expect("the recorded frames are there");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("one object a line"));
    lines.map(|line: serde_json::Value| read_recorded(&line)).collect()
}

/// Recorded requests with a few bytes changed, cut or repeated, `count` of them, from a seed.
/// Only those come that still are a frame with a header, since nothing else reaches a handler.
pub(crate) fn mutated(count: usize, mut each: impl FnMut(&[u8])) {
    const MARKS: &[u8] = b"{}[]\\\":,0-";
    let files = ["java498-json.jsonl", "java498-binary.jsonl", "mqadmin498.jsonl"];
    let mut requests: Vec<Vec<u8>> = Vec::new();
    for file in files.iter().chain(&["broker497-registers.jsonl", "cpp-python.jsonl"]) {
        let frames = recorded(file).into_iter().filter(|frame| !frame.response);
        requests.extend(frames.map(|frame| frame.bytes));
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 1).expect("64 bits") % below
    };
    let mut made = 0;
    while made < count {
        let mut bytes = requests[random(requests.len())].clone();
        for _ in 0..=random(4) {
            // The length field stays right, so that the rest is looked at.
            let at = 4 + random(bytes.len() - 4);
            bytes[at] = match random(3) {
                0 => u8::try_from(random(256)).expect("a byte"),
                1 => MARKS[random(MARKS.len())],
                _ => bytes[4 + random(bytes.len() - 4)],
            };
        }
        let Ok(Some(frame)) = frame::decode(&bytes, FRAME_LEN_MAX) else { continue };
        if Command::parse(frame.encoding, frame.header).is_ok() {
            each(&bytes);
            made += 1;
        }
    }
}

fn read_recorded(line: &serde_json::Value) -> Recorded {
    let number = |name: &str| line[name].as_i64().and_then(|number| i32::try_from(number).ok());
    let hex = line["frame"].as_str().expect("the frame in hex");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two hex digits");
    let code = number("code").expect("a code");
    Recorded {
        response: line["response"] == true,
        to_namesrv: line["to"] == "namesrv",
        request: number("requestCode").unwrap_or(code),
        code,
        remark: line["remark"].as_str().map(str::to_owned),
        bytes: (0..hex.len()).step_by(2).map(byte).collect(),
    }
}

/// A folder of its own that goes with the value.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ringmq-test-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
