//! `topics.json`, `subscriptionGroup.json` and `consumerOffset.json`, for people to read.
//!
//! They have the shape of upstream's files and are never read back: the store alone knows what
//! holds. They follow every few seconds, each only if its content changed. Offsets are left out
//! where the store does not list them.
//!
//! Source: Apache RocketMQ 4.9.8, `ConfigManager` and its subclasses: pretty JSON with tabs. Queue
//! ids are quoted, which fastjson reads as well and other programs can read at all.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use imbl::HashMap;
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::warn;

use super::{
    BoxFuture, ConsumerOffset, GroupConfig, TopicConfig, bodies, broker::Broker, facts::Version,
    files,
};

/// The files of one broker.
#[derive(Default)]
pub(crate) struct Snapshots {
    dir: Option<Arc<Path>>,
    /// What they said when they were written last; a running task has it.
    written: Written,
    task: Option<JoinHandle<Written>>,
}

/// What the files are to say. Cheap to take: nothing is copied.
#[derive(Clone)]
pub(crate) struct State {
    topics: HashMap<Arc<str>, Arc<TopicConfig>>,
    topics_version: Version,
    groups: HashMap<Arc<str>, Arc<GroupConfig>>,
    groups_version: Version,
}

/// What the files said when they were written last.
#[derive(Default)]
struct Written {
    topics: Option<Version>,
    groups: Option<Version>,
    offsets: Option<Offsets>,
    /// The latest attempt failed, which has been said.
    failing: bool,
}

/// `topic@group` to queue id to offset.
type Offsets = BTreeMap<String, BTreeMap<u32, i64>>;

impl State {
    pub(crate) fn of(broker: &Broker) -> Self {
        Self {
            topics: broker.topics.all().clone(),
            topics_version: broker.topics.version(),
            groups: broker.groups.all().clone(),
            groups_version: broker.groups.version(),
        }
    }
}

impl Snapshots {
    /// Files in this folder; none at all without one.
    pub(crate) fn new(dir: Option<PathBuf>) -> Self {
        Self { dir: dir.map(Into::into), ..Self::default() }
    }

    /// Starts to write what changed, unless the last time is still not over.
    pub(crate) async fn start(
        &mut self,
        state: State,
        offsets: impl FnOnce() -> BoxFuture<Option<Vec<ConsumerOffset>>>,
    ) {
        let Some(dir) = self.dir.clone() else { return };
        if self.task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        self.finish().await;
        let written = std::mem::take(&mut self.written);
        self.task = Some(tokio::spawn(write(dir, state, offsets(), written)));
    }

    /// Writes the last state before the end.
    pub(crate) async fn finish_with(
        &mut self,
        state: State,
        offsets: impl FnOnce() -> BoxFuture<Option<Vec<ConsumerOffset>>>,
    ) {
        self.finish().await;
        self.start(state, offsets).await;
        self.finish().await;
    }

    async fn finish(&mut self) {
        if let Some(task) = self.task.take() {
            self.written = task.await.unwrap_or_default();
        }
    }
}

async fn write(
    dir: Arc<Path>,
    state: State,
    offsets: BoxFuture<Option<Vec<ConsumerOffset>>>,
    mut written: Written,
) -> Written {
    let offsets = offsets.await.map(table);
    let task = spawn_blocking(move || {
        let failed = write_files(&dir, &state, offsets, &mut written).err();
        if let (Some(error), false) = (&failed, written.failing) {
            warn!(dir = %dir.display(), %error, "the files for people cannot be written");
        }
        written.failing = failed.is_some();
        written
    });
    task.await.unwrap_or_default()
}

fn write_files(
    dir: &Path,
    state: &State,
    offsets: Option<Offsets>,
    written: &mut Written,
) -> io::Result<()> {
    if written.topics != Some(state.topics_version) {
        let in_order = bodies::in_order(&state.topics);
        let body = bodies::topic_table(state.topics_version, &in_order);
        files::replace(&dir.join("topics.json"), &pretty(&body)?)?;
        written.topics = Some(state.topics_version);
    }
    if written.groups != Some(state.groups_version) {
        let in_order = bodies::in_order(&state.groups);
        let body = bodies::group_table(state.groups_version, &in_order);
        files::replace(&dir.join("subscriptionGroup.json"), &pretty(&body)?)?;
        written.groups = Some(state.groups_version);
    }
    if let Some(offsets) = offsets.filter(|offsets| written.offsets.as_ref() != Some(offsets)) {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct File<'a> {
            offset_table: &'a Offsets,
        }
        let content = pretty(&File { offset_table: &offsets })?;
        files::replace(&dir.join("consumerOffset.json"), &content)?;
        written.offsets = Some(offsets);
    }
    Ok(())
}

fn table(offsets: Vec<ConsumerOffset>) -> Offsets {
    let mut table = Offsets::new();
    for offset in offsets {
        let queues = table.entry(format!("{}@{}", offset.topic, offset.group)).or_default();
        queues.insert(offset.queue_id, offset.queue_offset);
    }
    table
}

fn pretty(body: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let formatter = PrettyFormatter::with_indent(b"\t");
    body.serialize(&mut Serializer::with_formatter(&mut content, formatter))?;
    content.push(b'\n');
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;
    use crate::control::{NewTopic, testing};

    fn none() -> BoxFuture<Option<Vec<ConsumerOffset>>> {
        Box::pin(std::future::ready(None))
    }

    fn some(queue_offset: i64) -> BoxFuture<Option<Vec<ConsumerOffset>>> {
        let offset =
            ConsumerOffset { topic: "T".into(), group: "G".into(), queue_id: 3, queue_offset };
        Box::pin(std::future::ready(Some(vec![offset])))
    }

    fn read(dir: &Path, name: &str) -> Value {
        serde_json::from_slice(&fs::read(dir.join(name)).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn files_have_the_shape_of_upstream() {
        let dir = testing::TempDir::new("snapshots");
        let mut broker = testing::broker();
        let how = NewTopic::OfGroup { queue_nums: 4, unit_mode: false };
        broker.topics.create("TopicTest", &how, 1_700_000_000_000).unwrap();
        broker.groups.find_or_create("group_a", 1_700_000_000_000).unwrap();
        let mut snapshots = Snapshots::new(Some(dir.path().to_owned()));
        snapshots.finish_with(State::of(&broker), || some(15)).await;
        let topics = read(dir.path(), "topics.json");
        assert_eq!(topics["dataVersion"]["timestamp"], 1_700_000_000_000_i64);
        assert_eq!(
            topics["topicConfigTable"]["TopicTest"],
            json!({"order": false, "perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG",
                   "topicName": "TopicTest", "topicSysFlag": 0, "writeQueueNums": 4})
        );
        let groups = read(dir.path(), "subscriptionGroup.json");
        assert_eq!(
            groups["subscriptionGroupTable"]["group_a"],
            json!({"brokerId": 0, "consumeBroadcastEnable": true, "consumeEnable": true,
                   "consumeFromMinEnable": true, "groupName": "group_a",
                   "notifyConsumerIdsChangedEnable": true, "retryMaxTimes": 16,
                   "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1})
        );
        let offsets = read(dir.path(), "consumerOffset.json");
        assert_eq!(offsets, json!({"offsetTable": {"T@G": {"3": 15}}}));
    }

    #[tokio::test]
    async fn only_what_changed_is_written() {
        let dir = testing::TempDir::new("snapshots-changes");
        let mut broker = testing::broker();
        let mut snapshots = Snapshots::new(Some(dir.path().to_owned()));
        snapshots.finish_with(State::of(&broker), none).await;
        assert!(!dir.path().join("consumerOffset.json").exists());
        for name in ["topics.json", "subscriptionGroup.json"] {
            fs::remove_file(dir.path().join(name)).unwrap();
        }
        snapshots.finish_with(State::of(&broker), none).await;
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        broker.groups.find_or_create("G", 5).unwrap();
        snapshots.finish_with(State::of(&broker), || some(1)).await;
        assert!(!dir.path().join("topics.json").exists());
        assert!(dir.path().join("subscriptionGroup.json").exists());
        fs::remove_file(dir.path().join("consumerOffset.json")).unwrap();
        snapshots.finish_with(State::of(&broker), || some(1)).await;
        assert!(!dir.path().join("consumerOffset.json").exists());
        snapshots.finish_with(State::of(&broker), || some(2)).await;
        assert!(dir.path().join("consumerOffset.json").exists());
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_written_is_tried_again() {
        let dir = testing::TempDir::new("snapshots-error");
        let inner = dir.path().join("config");
        fs::write(&inner, b"a file").unwrap();
        let broker = testing::broker();
        let mut snapshots = Snapshots::new(Some(inner.clone()));
        snapshots.finish_with(State::of(&broker), none).await;
        assert!(snapshots.written.failing);
        fs::remove_file(&inner).unwrap();
        snapshots.finish_with(State::of(&broker), none).await;
        assert!(!snapshots.written.failing && inner.join("topics.json").exists());
    }
}
