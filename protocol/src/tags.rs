//! Tags: the hash that queues store, and the expressions that consumers subscribe with.
//!
//! A broker compares hashes only; the consumer compares the tags themselves, so that equal hashes
//! cost a wasted message and never a wrong one.
//!
//! Source: Apache RocketMQ 4.9.8, `FilterAPI.buildSubscriptionData`,
//! `MessageExtBrokerInner.tagsString2tagsCode`.

use alloc::{string::String, vec::Vec};
use core::fmt;

/// Java's `String.hashCode`, over UTF-16 units.
pub fn java_hash(text: &str) -> i32 {
    text.encode_utf16()
        .fold(0, |hash: i32, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// The tag hash that a queue's entry holds: [`java_hash`], or 0 without a tag.
pub fn tags_code(tag: Option<&[u8]>) -> i64 {
    let Some(tag) = tag else { return 0 };
    // ASCII has one UTF-16 unit per byte, and nearly every tag is ASCII.
    let hash = match tag.is_ascii() {
        true => tag
            .iter()
            .fold(0, |hash: i32, byte| hash.wrapping_mul(31).wrapping_add(i32::from(*byte))),
        false => java_hash(&String::from_utf8_lossy(tag)),
    };
    i64::from(hash)
}

/// What a tag expression lets through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagSet {
    /// Everything, messages without a tag included.
    All,
    /// Messages with one of these tags, in the order of the expression.
    Tags(Vec<String>),
}

/// A tag expression consists of separators only: answer `SUBSCRIPTION_PARSE_FAILED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTags;

impl fmt::Display for NoTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the expression has separators, but no tag")
    }
}

impl core::error::Error for NoTags {}

impl TagSet {
    /// Reads an expression: empty or `*` for everything, else tags separated by `||`.
    ///
    /// # Errors
    ///
    /// [`NoTags`] if there is nothing between the separators.
    ///
    /// # Source
    ///
    /// Apache RocketMQ 4.9.8, `FilterAPI.buildSubscriptionData`. White space only matches nothing,
    /// as there.
    pub fn parse(expression: &str) -> Result<Self, NoTags> {
        if expression.is_empty() || expression == "*" {
            return Ok(Self::All);
        }
        if expression.split("||").all(str::is_empty) {
            return Err(NoTags);
        }
        let tags = expression.split("||").map(str::trim).filter(|tag| !tag.is_empty());
        Ok(Self::Tags(tags.map(String::from).collect()))
    }

    /// The tags' hashes, sorted and without repeats; `None` if everything passes.
    pub fn codes(&self) -> Option<Vec<i64>> {
        let Self::Tags(tags) = self else { return None };
        let mut codes: Vec<_> = tags.iter().map(|tag| i64::from(java_hash(tag))).collect();
        codes.sort_unstable();
        codes.dedup();
        Some(codes)
    }

    /// The exact check that a consumer makes after the broker's.
    pub fn matches(&self, tag: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Tags(tags) => tag.is_some_and(|tag| tags.iter().any(|wanted| wanted == tag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The facts sheet's vectors (storage A.1).
    #[test]
    fn hashes_are_javas() {
        for (text, hash) in [
            ("", 0),
            ("a", 97),
            ("TagA", 2_598_919),
            ("TagB", 2_598_920),
            ("d", 100),
            ("ck", 3176),
            ("ack", 96393),
            ("bAck", 2_985_159),
            ("\u{8ba2}\u{5355}", 1_129_459),
            ("\u{1f600}", 1_772_899),
            ("polygenelubricants", i32::MIN),
            ("TopicTest#k1", 2_746_024),
            ("TopicTest#7F0000010000000000000000", 2_026_251_698),
        ] {
            assert_eq!(java_hash(text), hash, "{text}");
            assert_eq!(tags_code(Some(text.as_bytes())), i64::from(hash), "{text}");
        }
        assert_eq!(tags_code(None), 0);
        assert_eq!(tags_code(Some(b"polygenelubricants")), -0x8000_0000);
    }

    #[test]
    fn expressions_are_split_as_java_splits_them() {
        let tags =
            |tags: &[&str]| Ok(TagSet::Tags(tags.iter().map(|t| String::from(*t)).collect()));
        assert_eq!(TagSet::parse(""), Ok(TagSet::All));
        assert_eq!(TagSet::parse("*"), Ok(TagSet::All));
        assert_eq!(TagSet::parse("TagA || TagB"), tags(&["TagA", "TagB"]));
        assert_eq!(TagSet::parse("a||"), tags(&["a"]));
        assert_eq!(TagSet::parse("|||"), tags(&["|"]));
        assert_eq!(TagSet::parse(" "), tags(&[]));
        assert_eq!(TagSet::parse("||"), Err(NoTags));
        assert_eq!(TagSet::parse("||||"), Err(NoTags));
    }

    #[test]
    fn codes_are_sorted_and_tags_compared_exactly() {
        let set = TagSet::parse("TagB||TagA||TagA").unwrap();
        assert_eq!(set.codes(), Some(Vec::from([2_598_919, 2_598_920])));
        assert_eq!(TagSet::All.codes(), None);
        assert!(set.matches(Some("TagA")));
        assert!(!set.matches(Some("taga")));
        assert!(!set.matches(None));
        assert!(TagSet::All.matches(None));
    }
}
