//! KV configuration: texts by namespace and key, which admin tools put into every name server.
//!
//! The only state of a name server that outlives it. Brokers get the namespace `ORDER_TOPIC_CONFIG`
//! with each registration.
//!
//! Source: Apache RocketMQ 4.9.8, `KVConfigManager`; the file is its `kvConfig.json`.

use std::{collections::BTreeMap, io};

use ringmq_protocol::{
    codes::request,
    command::Command,
    headers::{HeaderError, KvKeyRequest, PutKvRequest},
};
use serde::{Deserialize, Serialize};

/// Bytes of all namespaces, keys and values together at most.
pub const KV_BYTES_MAX: usize = 4 << 20;
/// What an entry counts beyond its text, so that empty ones are bounded too.
const ENTRY_OVERHEAD: usize = 64;

/// The table would exceed [`KV_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvFull;

/// A change that somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KvChange {
    Put { namespace: String, key: String, value: String },
    Delete { namespace: String, key: String },
}

/// Why a change was not made.
#[derive(Debug)]
pub(crate) enum NotChanged {
    Full,
    NotSaved(io::Error),
}

impl KvChange {
    /// The change that a request asks for; `None` if it asks for something else.
    pub(crate) fn of(command: &Command<'_>) -> Option<Result<Self, HeaderError>> {
        match command.code {
            request::PUT_KV_CONFIG => Some(PutKvRequest::decode(command).map(|put| Self::Put {
                namespace: put.namespace.into_owned(),
                key: put.key.into_owned(),
                value: put.value.into_owned(),
            })),
            request::DELETE_KV_CONFIG => {
                Some(KvKeyRequest::decode(command).map(|entry| Self::Delete {
                    namespace: entry.namespace.into_owned(),
                    key: entry.key.into_owned(),
                }))
            }
            _ => None,
        }
    }

    /// The table with the change, once `save` has made its content durable; `None` if it is the same
    /// without. Both take their time: this is not for a thread that serves connections.
    pub(crate) fn apply(
        &self,
        before: &KvTable,
        save: impl FnOnce(&[u8]) -> io::Result<()>,
    ) -> Result<Option<KvTable>, NotChanged> {
        let mut table = before.clone();
        match self {
            Self::Put { namespace, key, value } => {
                table.put(namespace, key, value).map_err(|KvFull| NotChanged::Full)?;
            }
            Self::Delete { namespace, key } => table.delete(namespace, key),
        }
        if table == *before {
            return Ok(None);
        }
        save(&table.to_json()).map_err(NotChanged::NotSaved)?;
        Ok(Some(table))
    }
}

/// All entries, by namespace and key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KvTable {
    config_table: BTreeMap<String, BTreeMap<String, String>>,
}

impl KvTable {
    /// Reads the file's content.
    ///
    /// # Errors
    ///
    /// If it is not what [`KvTable::to_json`] or RocketMQ wrote.
    pub fn from_json(content: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(content)
    }

    /// The file's content.
    ///
    /// # Panics
    ///
    /// Never: a map of texts is JSON.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("a map of texts is JSON")
    }

    /// Adds or replaces an entry.
    ///
    /// # Errors
    ///
    /// [`KvFull`]; nothing has changed then.
    pub fn put(&mut self, namespace: &str, key: &str, value: &str) -> Result<(), KvFull> {
        let old = self.get(namespace, key).map_or(0, str::len);
        let added = namespace.len() + key.len() + value.len() + ENTRY_OVERHEAD;
        if self.bytes() + added > KV_BYTES_MAX + old {
            return Err(KvFull);
        }
        let keys = self.config_table.entry(namespace.to_owned()).or_default();
        keys.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// Removes an entry, if it is there.
    pub fn delete(&mut self, namespace: &str, key: &str) {
        let Some(keys) = self.config_table.get_mut(namespace) else { return };
        keys.remove(key);
        if keys.is_empty() {
            self.config_table.remove(namespace);
        }
    }

    /// The value of an entry.
    #[must_use]
    pub fn get(&self, namespace: &str, key: &str) -> Option<&str> {
        self.config_table.get(namespace)?.get(key).map(String::as_str)
    }

    /// All entries of a namespace, `None` if it has none.
    #[must_use]
    pub fn namespace(&self, namespace: &str) -> Option<&BTreeMap<String, String>> {
        self.config_table.get(namespace)
    }

    fn bytes(&self) -> usize {
        let entries = self.config_table.iter().flat_map(|(namespace, keys)| {
            keys.iter().map(|(key, value)| namespace.len() + key.len() + value.len())
        });
        entries.map(|len| len + ENTRY_OVERHEAD).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_put_read_and_deleted() {
        let mut kv = KvTable::default();
        kv.put("NS", "a", "1").unwrap();
        kv.put("NS", "b", "2").unwrap();
        kv.put("NS", "a", "3").unwrap();
        assert_eq!(kv.get("NS", "a"), Some("3"));
        assert_eq!(kv.namespace("NS").unwrap().len(), 2);
        assert_eq!(kv.get("other", "a"), None);
        kv.delete("NS", "a");
        kv.delete("NS", "a");
        kv.delete("other", "a");
        assert_eq!(kv.get("NS", "a"), None);
        kv.delete("NS", "b");
        assert_eq!(kv.namespace("NS"), None);
    }

    #[test]
    fn the_file_has_the_shape_of_upstream() {
        let mut kv = KvTable::default();
        kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4").unwrap();
        let json = kv.to_json();
        assert_eq!(KvTable::from_json(&json).unwrap(), kv);
        let upstream = br#"{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}"#;
        assert_eq!(KvTable::from_json(upstream).unwrap(), kv);
        assert!(KvTable::from_json(b"{").is_err());
    }

    #[test]
    fn the_table_is_bounded() {
        let mut kv = KvTable::default();
        let half = "x".repeat(KV_BYTES_MAX / 2);
        kv.put("NS", "a", &half).unwrap();
        assert_eq!(kv.put("NS", "b", &half), Err(KvFull));
        assert_eq!(kv.get("NS", "b"), None);
        kv.put("NS", "a", &half).unwrap();
        assert_eq!(kv.put("NS", "a", &"x".repeat(KV_BYTES_MAX)), Err(KvFull));
    }
}
