//! The body of SEND_BATCH_MESSAGE (320): items back to back, without topic, queue or times.
//!
//! Source: Apache RocketMQ 4.9.8, `MessageDecoder.encodeMessages`, `CommitLog` batch encoder.

use alloc::vec::Vec;
use core::fmt;

use crate::limits::PROPERTIES_LEN_MAX;

/// Bytes of an item without its body and properties.
pub const ITEM_OVERHEAD: usize = 22;

/// One message of a batch, borrowed from the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The application's own number.
    pub flag: i32,
    /// The message's body.
    pub body: &'a [u8],
    /// Its properties, in the form of [`crate::properties`].
    pub properties: &'a [u8],
}

/// The body ends in the middle of an item, or an item's length is negative: answer `SYSTEM_ERROR`
/// and store nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchError {
    /// Position of the damaged item in the body, in bytes.
    pub position: usize,
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the batch is cut or damaged at byte {}", self.position)
    }
}

impl core::error::Error for BatchError {}

/// Reads the items of a batch one by one. Ends after the first error.
///
/// Upstream does not look at an item's total length, magic or checksum, nor does this: body and
/// properties lengths alone say where the next item begins.
///
/// # Source
///
/// Apache RocketMQ 4.9.8, `CommitLog.MessageExtBatchEncoder`; measured with 4.9.7.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    body: &'a [u8],
    at: usize,
}

/// The items of a batch body.
pub const fn items(body: &[u8]) -> Items<'_> {
    Items { body, at: 0 }
}

impl<'a> Items<'a> {
    fn item(rest: &'a [u8]) -> Option<(Item<'a>, &'a [u8])> {
        // Total length, magic and checksum are passed over.
        let (_, rest) = rest.split_first_chunk::<12>()?;
        let (flag, rest) = rest.split_first_chunk::<4>()?;
        let (body_len, rest) = rest.split_first_chunk::<4>()?;
        let body_len = usize::try_from(i32::from_be_bytes(*body_len)).ok()?;
        let (body, rest) = rest.split_at_checked(body_len)?;
        let (properties_len, rest) = rest.split_first_chunk::<2>()?;
        let properties_len = usize::try_from(i16::from_be_bytes(*properties_len)).ok()?;
        let (properties, rest) = rest.split_at_checked(properties_len)?;
        Some((Item { flag: i32::from_be_bytes(*flag), body, properties }, rest))
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.body.get(self.at..).filter(|rest| !rest.is_empty())?;
        match Self::item(rest) {
            Some((item, tail)) => {
                self.at = self.body.len() - tail.len();
                Some(Ok(item))
            }
            None => {
                let position = self.at;
                self.at = self.body.len();
                Some(Err(BatchError { position }))
            }
        }
    }
}

/// The item is longer than its length fields can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemTooLong;

impl fmt::Display for ItemTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message is too long for a batch item")
    }
}

impl core::error::Error for ItemTooLong {}

/// Appends an item to a batch body.
///
/// # Errors
///
/// [`ItemTooLong`] if properties are over [`PROPERTIES_LEN_MAX`] or the whole is over 2 GiB; the
/// batch is unchanged.
pub fn append(out: &mut Vec<u8>, item: &Item<'_>) -> Result<(), ItemTooLong> {
    if item.properties.len() > PROPERTIES_LEN_MAX {
        return Err(ItemTooLong);
    }
    let len = ITEM_OVERHEAD + item.body.len() + item.properties.len();
    let len = i32::try_from(len).map_err(|_| ItemTooLong)?;
    let body_len = i32::try_from(item.body.len()).map_err(|_| ItemTooLong)?;
    let properties_len = i16::try_from(item.properties.len()).map_err(|_| ItemTooLong)?;
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&item.flag.to_be_bytes());
    out.extend_from_slice(&body_len.to_be_bytes());
    out.extend_from_slice(item.body);
    out.extend_from_slice(&properties_len.to_be_bytes());
    out.extend_from_slice(item.properties);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Item<'_> = Item { flag: 0, body: b"hello", properties: b"TAGS\x01TagA" };

    /// The facts sheet's vector (storage A.4).
    #[test]
    fn an_item_has_upstreams_bytes() {
        let mut out = Vec::new();
        append(&mut out, &HELLO).unwrap();
        let want = [
            &[0, 0, 0, 0x24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5][..],
            b"hello",
            &[0, 9],
            b"TAGS\x01TagA",
        ];
        assert_eq!(out, want.concat());
    }

    #[test]
    fn items_come_back_and_a_cut_is_an_error() {
        let mut out = Vec::new();
        let empty = Item { flag: -1, body: b"", properties: b"" };
        append(&mut out, &HELLO).unwrap();
        append(&mut out, &empty).unwrap();
        assert_eq!(items(&out).collect::<Vec<_>>(), [Ok(HELLO), Ok(empty)]);
        for cut in 1..out.len() {
            let last = items(&out[..cut]).last().unwrap();
            let whole = cut == ITEM_OVERHEAD + 14;
            assert_eq!(last.is_ok(), whole, "cut at {cut}");
        }
        assert_eq!(items(b"").next(), None);
    }

    #[test]
    fn negative_lengths_are_errors() {
        let mut out = Vec::new();
        append(&mut out, &HELLO).unwrap();
        out[16] = 0x80;
        assert_eq!(items(&out).collect::<Vec<_>>(), [Err(BatchError { position: 0 })]);
    }
}
