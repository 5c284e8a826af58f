//! Keys of queues and facts in the store. They are on disk: never change one.
//!
//! A queue's key is its topic, a zero byte and the queue id; a consumer offset's is the letters
//! `offset/`, the lengths and texts of group and topic, and the queue id. Numbers are big-endian.
//! Names that reach this module are valid ones, or at least no longer than the facts sheet allows.

/// Starts the key of every consumer offset.
pub(crate) const OFFSET_PREFIX: &[u8] = b"offset/";

/// A key on the stack: topic and group are bounded, so a short buffer holds it.
pub(crate) fn queue(topic: &str, queue_id: i32, key: &mut Vec<u8>) {
    key.clear();
    key.extend_from_slice(topic.as_bytes());
    key.push(0);
    key.extend_from_slice(&queue_id.to_be_bytes());
}

/// The key of a consumer offset.
pub(crate) fn offset(group: &str, topic: &str, queue_id: i32, key: &mut Vec<u8>) {
    key.clear();
    key.extend_from_slice(OFFSET_PREFIX);
    for name in [group, topic] {
        // Longer names were refused; a cut length would only make such a key unreadable.
        let len = u16::try_from(name.len()).unwrap_or(u16::MAX);
        key.extend_from_slice(&len.to_be_bytes());
        key.extend_from_slice(name.as_bytes());
    }
    key.extend_from_slice(&queue_id.to_be_bytes());
}

/// Group, topic and queue id of a consumer offset's key.
pub(crate) fn parse_offset(key: &[u8]) -> Option<(&str, &str, i32)> {
    let rest = key.strip_prefix(OFFSET_PREFIX)?;
    let (group, rest) = name(rest)?;
    let (topic, rest) = name(rest)?;
    let queue_id: &[u8; 4] = rest.try_into().ok()?;
    Some((group, topic, i32::from_be_bytes(*queue_id)))
}

fn name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    let (name, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
    Some((std::str::from_utf8(name).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_on_disk_never_change() {
        let mut key = Vec::new();
        queue("T", 7, &mut key);
        assert_eq!(key, b"T\0\0\0\0\x07");
        offset("g", "T", -1, &mut key);
        assert_eq!(key, b"offset/\0\x01g\0\x01T\xff\xff\xff\xff");
    }

    #[test]
    fn an_offset_key_reads_back() {
        let mut key = Vec::new();
        offset("group", "%RETRY%group", 3, &mut key);
        assert_eq!(parse_offset(&key), Some(("group", "%RETRY%group", 3)));
        for cut in 0..key.len() {
            assert_eq!(parse_offset(&key[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn no_two_names_share_a_key() {
        let (mut one, mut other) = (Vec::new(), Vec::new());
        offset("ab", "c", 0, &mut one);
        offset("a", "bc", 0, &mut other);
        assert_ne!(one, other);
    }
}
