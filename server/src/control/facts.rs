//! Topics, groups and their versions as facts: the bytes that the store keeps.
//!
//! Keys are text, values start with a byte that says their layout; all integers are big-endian.
//!
//! | Key | Value |
//! |---|---|
//! | `control/topic/<name>` | `1`, read queues u32, write queues u32, permission u32, flags u32, filter type u8 (0 single, 1 multi), order u8 (0, 1): 19 bytes |
//! | `control/group/<name>` | `1`, switches u8 (1 consume, 2 from min, 4 broadcast, 8 notify), retry queues i32, retry times i32, broker id i64, slow broker id i64: 26 bytes |
//! | `control/version/topics`, `control/version/groups` | `1`, counter i64, milliseconds since 1970 i64: 17 bytes |
//!
//! A layout byte that this build does not know stops the start: the store was written by a newer
//! build. Anything else that does not fit its layout is damage, and stops the start too.

use std::{fmt, sync::Arc};

use super::{Fact, FilterType, GroupConfig, TopicConfig};

const TOPIC: &str = "control/topic/";
const GROUP: &str = "control/group/";
const TOPICS_VERSION: &str = "control/version/topics";
const GROUPS_VERSION: &str = "control/version/groups";
const LAYOUT: u8 = 1;
const FILTER_TYPE_SINGLE: u8 = 0;
const FILTER_TYPE_MULTI: u8 = 1;

/// When a table changed last, and how often: what name servers compare.
///
/// Source: `DataVersion` of RocketMQ 4.9.8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    /// Changes so far.
    pub(crate) counter: i64,
    /// Milliseconds since 1970.
    pub(crate) changed_ms: i64,
}

impl Version {
    /// The version after one more change.
    pub(crate) fn next(self, epoch_ms: i64) -> Self {
        Self { counter: self.counter.wrapping_add(1), changed_ms: epoch_ms }
    }
}

/// One fact, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Topic(TopicConfig),
    Group(GroupConfig),
    TopicsVersion(Version),
    GroupsVersion(Version),
}

/// Why a fact of the store cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FactError {
    /// A newer build wrote it.
    Newer { key: String, layout: u8 },
    /// Its bytes do not fit.
    Damaged { key: String },
}

impl fmt::Display for FactError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer { key, layout } => {
                write!(f, "the store keeps {key} in layout {layout}: start a newer ringmq")
            }
            Self::Damaged { key } => write!(f, "the store's entry {key} is damaged"),
        }
    }
}

impl std::error::Error for FactError {}

/// Decodes one fact.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Stored, FactError> {
    let damaged = || FactError::Damaged { key: String::from_utf8_lossy(key).into_owned() };
    let key_text = std::str::from_utf8(key).map_err(|_| damaged())?;
    let (layout, rest) = value.split_first().ok_or_else(damaged)?;
    if *layout != LAYOUT {
        return Err(FactError::Newer { key: key_text.to_owned(), layout: *layout });
    }
    let mut fields = Fields(rest);
    let stored = if let Some(name) = key_text.strip_prefix(TOPIC) {
        topic(name, &mut fields).map(Stored::Topic)
    } else if let Some(name) = key_text.strip_prefix(GROUP) {
        group(name, &mut fields).map(Stored::Group)
    } else if key_text == TOPICS_VERSION {
        version(&mut fields).map(Stored::TopicsVersion)
    } else if key_text == GROUPS_VERSION {
        version(&mut fields).map(Stored::GroupsVersion)
    } else {
        None
    };
    stored.filter(|_| fields.0.is_empty()).ok_or_else(damaged)
}

/// The fact that keeps a topic, or removes it.
pub(crate) fn topic_fact(name: &str, config: Option<&TopicConfig>) -> Fact {
    let value = config.map(|config| {
        let mut value = vec![LAYOUT];
        for number in
            [config.read_queue_nums, config.write_queue_nums, config.perm, config.sys_flag]
        {
            value.extend(number.to_be_bytes());
        }
        value.push(match config.filter_type {
            FilterType::SingleTag => FILTER_TYPE_SINGLE,
            FilterType::MultiTag => FILTER_TYPE_MULTI,
        });
        value.push(u8::from(config.order));
        value
    });
    fact(format!("{TOPIC}{name}"), value)
}

/// The fact that keeps a group's configuration, or removes it.
pub(crate) fn group_fact(name: &str, config: Option<&GroupConfig>) -> Fact {
    let value = config.map(|config| {
        let switches = u8::from(config.consume_enable)
            | u8::from(config.consume_from_min_enable) << 1
            | u8::from(config.consume_broadcast_enable) << 2
            | u8::from(config.notify_consumer_ids_changed_enable) << 3;
        let mut value = vec![LAYOUT, switches];
        value.extend(config.retry_queue_nums.to_be_bytes());
        value.extend(config.retry_max_times.to_be_bytes());
        value.extend(config.broker_id.to_be_bytes());
        value.extend(config.which_broker_when_consume_slowly.to_be_bytes());
        value
    });
    fact(format!("{GROUP}{name}"), value)
}

/// The fact that keeps the version of the topics.
pub(crate) fn topics_version_fact(version: Version) -> Fact {
    fact(TOPICS_VERSION.to_owned(), Some(version_bytes(version)))
}

/// The fact that keeps the version of the groups.
pub(crate) fn groups_version_fact(version: Version) -> Fact {
    fact(GROUPS_VERSION.to_owned(), Some(version_bytes(version)))
}

fn fact(key: String, value: Option<Vec<u8>>) -> Fact {
    Fact { key: key.into_bytes().into(), value: value.map(Into::into) }
}

fn version_bytes(version: Version) -> Vec<u8> {
    let mut value = vec![LAYOUT];
    value.extend(version.counter.to_be_bytes());
    value.extend(version.changed_ms.to_be_bytes());
    value
}

fn topic(name: &str, fields: &mut Fields<'_>) -> Option<TopicConfig> {
    Some(TopicConfig {
        name: Arc::from(name),
        read_queue_nums: fields.take().map(u32::from_be_bytes)?,
        write_queue_nums: fields.take().map(u32::from_be_bytes)?,
        perm: fields.take().map(u32::from_be_bytes)?,
        sys_flag: fields.take().map(u32::from_be_bytes)?,
        filter_type: match fields.take()? {
            [FILTER_TYPE_SINGLE] => FilterType::SingleTag,
            [FILTER_TYPE_MULTI] => FilterType::MultiTag,
            _ => return None,
        },
        order: match fields.take()? {
            [0] => false,
            [1] => true,
            _ => return None,
        },
    })
}

fn group(name: &str, fields: &mut Fields<'_>) -> Option<GroupConfig> {
    let [switches] = fields.take()?;
    if switches > 0xf {
        return None;
    }
    Some(GroupConfig {
        name: Arc::from(name),
        consume_enable: switches & 1 != 0,
        consume_from_min_enable: switches & 2 != 0,
        consume_broadcast_enable: switches & 4 != 0,
        notify_consumer_ids_changed_enable: switches & 8 != 0,
        retry_queue_nums: fields.take().map(i32::from_be_bytes)?,
        retry_max_times: fields.take().map(i32::from_be_bytes)?,
        broker_id: fields.take().map(i64::from_be_bytes)?,
        which_broker_when_consume_slowly: fields.take().map(i64::from_be_bytes)?,
    })
}

fn version(fields: &mut Fields<'_>) -> Option<Version> {
    Some(Version {
        counter: fields.take().map(i64::from_be_bytes)?,
        changed_ms: fields.take().map(i64::from_be_bytes)?,
    })
}

/// What is left of a value.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_topic() -> TopicConfig {
        TopicConfig {
            name: "T".into(),
            read_queue_nums: 4,
            write_queue_nums: 8,
            perm: 6,
            sys_flag: 2,
            filter_type: FilterType::MultiTag,
            order: true,
        }
    }

    fn sample_group() -> GroupConfig {
        GroupConfig {
            consume_from_min_enable: false,
            retry_max_times: -1,
            ..GroupConfig::new("G".into())
        }
    }

    #[track_caller]
    fn check_round_trip(fact: &Fact, want: Stored) {
        let value = fact.value.as_deref().unwrap();
        assert!(fact.key.starts_with(super::super::FACT_PREFIX));
        assert_eq!(decode(&fact.key, value), Ok(want));
        let damaged = FactError::Damaged { key: String::from_utf8(fact.key.to_vec()).unwrap() };
        for cut in 0..value.len() {
            assert_eq!(decode(&fact.key, &value[..cut]), Err(damaged.clone()), "cut at {cut}");
        }
        let mut longer = value.to_vec();
        longer.push(0);
        assert_eq!(decode(&fact.key, &longer), Err(damaged));
        longer[0] = 2;
        assert!(matches!(decode(&fact.key, &longer), Err(FactError::Newer { layout: 2, .. })));
    }

    #[test]
    fn facts_decode_to_what_was_encoded_and_to_nothing_else() {
        let topic = sample_topic();
        check_round_trip(&topic_fact("T", Some(&topic)), Stored::Topic(topic));
        let group = sample_group();
        check_round_trip(&group_fact("G", Some(&group)), Stored::Group(group));
        let version = Version { counter: 7, changed_ms: 1_700_000_000_000 };
        check_round_trip(&topics_version_fact(version), Stored::TopicsVersion(version));
        check_round_trip(&groups_version_fact(version), Stored::GroupsVersion(version));
    }

    /// These bytes are on disks: a change here needs a new layout number and a decoder for both.
    #[test]
    fn the_bytes_of_layout_1_stay_what_they_are() {
        let topic = topic_fact("T", Some(&sample_topic()));
        assert_eq!(&*topic.key, b"control/topic/T");
        let bytes = [1, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0, 6, 0, 0, 0, 2, 1, 1];
        assert_eq!(topic.value.as_deref(), Some(bytes.as_slice()));
        let group = group_fact("G", Some(&sample_group()));
        let mut bytes = vec![1, 13, 0, 0, 0, 1, 255, 255, 255, 255];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(group.value.as_deref(), Some(bytes.as_slice()));
    }

    #[test]
    fn a_removal_has_no_value() {
        assert_eq!(topic_fact("T", None).value, None);
        assert_eq!(group_fact("G", None).value, None);
    }

    #[test]
    fn foreign_keys_and_impossible_values_are_damage() {
        for (key, value) in [
            ("control/other", &[1][..]),
            ("control/topic/T", &[1, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0, 6, 0, 0, 0, 2, 2, 1][..]),
            ("control/topic/T", &[1, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0, 6, 0, 0, 0, 2, 1, 2][..]),
            ("control/topic/T", &[][..]),
        ] {
            let got = decode(key.as_bytes(), value);
            assert_eq!(got, Err(FactError::Damaged { key: key.into() }), "{key} {value:?}");
        }
        assert!(decode(&[0xff], &[1]).is_err());
    }
}
