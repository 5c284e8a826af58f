//! Offsets of a broadcasting member, in a file of its own machine.
//!
//! Each member reads all messages, so that brokers have no place for its offsets. The file is
//! replaced as a whole, and the one before it is kept beside it. Where there is none yet, the file
//! of upstream's Java client is read once, so that an application that moves here goes on.
//!
//! Source: Apache RocketMQ 4.9.8, `LocalFileOffsetStore`.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use ringmq_protocol::body::{MessageQueue as WireQueue, ObjectKeys, OffsetsByQueue};

use crate::{MessageQueue, QueueOffset};

/// A file of offsets.
#[derive(Clone, Debug)]
pub(crate) struct LocalFile {
    path: PathBuf,
    /// Where upstream's Java client has its file.
    java_path: Option<PathBuf>,
}

impl LocalFile {
    /// The file of a group in `folder`, or in the user's home. `member` names the client among
    /// those of the machine, and must be the same after a restart.
    pub(crate) fn new(folder: Option<&Path>, member: &str, group: &str) -> Self {
        let home = std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
        let below = |folder: &Path| folder.join(member).join(group).join("offsets.json");
        match folder {
            Some(folder) => Self { path: below(folder), java_path: None },
            None => Self {
                path: below(&home.join(".ringmq_offsets")),
                java_path: Some(below(&home.join(".rocketmq_offsets"))),
            },
        }
    }

    fn beside(&self, extension: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(extension);
        path.into()
    }

    /// All offsets; none if there is no file.
    ///
    /// # Errors
    ///
    /// Why neither the file nor the one before it can be read. That is not the same as none.
    pub(super) fn load(&self) -> io::Result<BTreeMap<MessageQueue, QueueOffset>> {
        let backup = self.beside(".bak");
        let mut failure = None;
        for path in [Some(&self.path), Some(&backup), self.java_path.as_ref()].into_iter().flatten()
        {
            match read(path) {
                Ok(offsets) => return Ok(offsets),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "cannot read offsets");
                    failure = Some(error);
                }
            }
        }
        failure.map_or_else(|| Ok(BTreeMap::new()), Err)
    }

    /// Replaces the file.
    ///
    /// # Errors
    ///
    /// Why it could not be written; the old one is still there then, or the one before it.
    pub(super) fn store(&self, offsets: &BTreeMap<MessageQueue, QueueOffset>) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let entries = offsets.iter().map(|(queue, offset)| {
            let (topic, broker_name) = (queue.topic().into(), queue.broker_name().into());
            (WireQueue { broker_name, queue_id: queue.queue_id(), topic }, offset.get())
        });
        let table = OffsetsByQueue { offset_table: entries.collect() };
        let fresh = self.beside(".tmp");
        let mut file = File::create(&fresh)?;
        file.write_all(&table.encode(ObjectKeys::Pairs))?;
        // Without it a power cut could leave an empty file under the new name.
        file.sync_all()?;
        match fs::rename(&self.path, self.beside(".bak")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::rename(&fresh, &self.path),
        }
    }
}

fn read(path: &Path) -> io::Result<BTreeMap<MessageQueue, QueueOffset>> {
    let table = OffsetsByQueue::decode(&fs::read(path)?).map_err(io::Error::other)?;
    let offsets = table.offset_table.into_iter().map(|(queue, offset)| {
        let queue = MessageQueue::new(queue.topic, queue.broker_name, queue.queue_id);
        (queue, QueueOffset::new(offset))
    });
    Ok(offsets.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(list: &[(i32, i64)]) -> BTreeMap<MessageQueue, QueueOffset> {
        let entry =
            |(id, at): &(i32, i64)| (MessageQueue::new("T", "a", *id), QueueOffset::new(*at));
        list.iter().map(entry).collect()
    }

    #[test]
    fn offsets_come_back_and_the_file_before_stands_in() {
        let folder = tempfile::tempdir().unwrap();
        let file = LocalFile::new(Some(folder.path()), "10.0.0.1@DEFAULT", "g");
        assert_eq!(file.load().unwrap(), BTreeMap::new());
        for list in [[(0, 7), (1, 9)], [(0, 8), (1, 10)]] {
            file.store(&offsets(&list)).unwrap();
            assert_eq!(file.load().unwrap(), offsets(&list));
        }
        fs::write(&file.path, "").unwrap();
        assert_eq!(file.load().unwrap(), offsets(&[(0, 7), (1, 9)]), "the file before");
    }

    #[test]
    fn damaged_files_are_not_the_same_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = LocalFile::new(Some(folder.path()), "m", "g");
        fs::create_dir_all(file.path.parent().unwrap()).unwrap();
        fs::write(&file.path, "{").unwrap();
        assert!(file.load().is_err());
    }

    #[test]
    fn the_java_clients_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let java_path = folder.path().join("offsets.json");
        let text = "{\n\t\"offsetTable\":{{\n\t\t\t\"brokerName\":\"a\",\n\t\t\t\"queueId\":3,\n\
                    \t\t\t\"topic\":\"T\"\n\t\t}:42\n\t}\n}";
        fs::write(&java_path, text).unwrap();
        let path = folder.path().join("own").join("offsets.json");
        let file = LocalFile { path, java_path: Some(java_path) };
        assert_eq!(file.load().unwrap(), offsets(&[(3, 42)]));
    }
}
