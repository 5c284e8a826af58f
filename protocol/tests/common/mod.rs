//! Reads the recorded frames.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{fmt, fs, path::Path};

use ringmq_protocol::{
    command::Command,
    frame::{self, FRAME_LEN_MAX, Frame},
};
use serde_json::Value;

/// One line of a recording: a frame and what the recorder says it means.
pub(crate) struct Recorded {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) request_code: i32,
    pub(crate) response: bool,
    pub(crate) code: i32,
    pub(crate) flag: i32,
    pub(crate) type_byte: u8,
    pub(crate) remark: Option<String>,
    pub(crate) ext: Vec<(String, String)>,
    pub(crate) body_len: usize,
    pub(crate) bytes: Vec<u8>,
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} line {}, request {}", self.file, self.line, self.request_code)
    }
}

impl Recorded {
    /// The frame and its header.
    pub(crate) fn parse(&self) -> (Frame<'_>, Command<'_>) {
        let frame = frame::decode(&self.bytes, FRAME_LEN_MAX)
            .unwrap_or_else(|error| panic!("{self}: {error}"))
            .unwrap_or_else(|| panic!("{self}: cut"));
        let command = Command::parse(frame.encoding, frame.header)
            .unwrap_or_else(|error| panic!("{self}: {error}"));
        (frame, command)
    }
}

/// All recorded frames, in the order of files and lines.
pub(crate) fn recorded() -> Vec<Recorded> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/frames");
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    assert_eq!(files.len(), 9, "every recording is there");
    let mut all = Vec::new();
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        for (index, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            all.push(read(&name, index + 1, &serde_json::from_str(line).unwrap()));
        }
    }
    all
}

fn read(file: &str, line: usize, value: &Value) -> Recorded {
    let int = |name: &str| i32::try_from(value[name].as_i64().unwrap()).unwrap();
    let mut ext: Vec<_> = value["extFields"]
        .as_object()
        .map(|entries| entries.iter().map(|(name, value)| (name.clone(), text(value))).collect())
        .unwrap_or_default();
    ext.sort();
    Recorded {
        file: file.to_owned(),
        line,
        request_code: int("requestCode"),
        response: value["response"].as_bool().unwrap(),
        code: int("code"),
        flag: int("flag"),
        type_byte: u8::try_from(int("type")).unwrap(),
        remark: value["remark"].as_str().map(str::to_owned),
        ext,
        body_len: usize::try_from(int("bodyLength")).unwrap(),
        bytes: hex(value["frame"].as_str().unwrap()),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn hex(digits: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.as_bytes().chunks(2).map(byte).collect()
}
