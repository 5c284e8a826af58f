//! Message ids that a producer makes by itself: property `UNIQ_KEY`.
//!
//! Source: Apache RocketMQ 4.9.8, `MessageClientIDSetter`. Upstream counts the milliseconds from
//! the start of the month in local time, this crate in UTC: only the decoded time of an id depends
//! on it, not that it is unique.

use std::{
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::atomic::{AtomicU16, Ordering},
};

use ringmq_protocol::message_id::{Hex, UniqueId};

use crate::clock;

/// Makes the ids of one client. No two are alike while fewer than 65,536 are made per millisecond.
#[derive(Debug)]
pub(crate) struct UniqueIds {
    ip: IpAddr,
    process_id: u16,
    salt: i32,
    counter: AtomicU16,
}

impl UniqueIds {
    pub(crate) fn new(ip: IpAddr, process_id: u32) -> Self {
        let [_, _, high, low] = process_id.to_be_bytes();
        let [a, b, c, d, ..] = random().to_be_bytes();
        Self {
            ip,
            process_id: u16::from_be_bytes([high, low]),
            salt: i32::from_be_bytes([a, b, c, d]),
            counter: AtomicU16::new(0),
        }
    }

    /// The next id, at a time in milliseconds since 1970.
    pub(crate) fn next(&self, now_ms: i64) -> Hex {
        // A month has fewer milliseconds than `i32` can count twice over, but more than once.
        let month_ms = clock::ms_into_month(now_ms) & 0xffff_ffff;
        let [.., a, b, c, d] = month_ms.to_be_bytes();
        UniqueId {
            ip: self.ip,
            process_id: self.process_id,
            salt: self.salt,
            month_ms: i32::from_be_bytes([a, b, c, d]),
            counter: self.counter.fetch_add(1, Ordering::Relaxed),
        }
        .to_hex()
    }
}

/// A random number, from the seed that the standard library draws for its hash maps.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_of_several_clients_differ_within_a_millisecond() {
        let clients = [0, 0, 70_000, 70_000].map(|pid| UniqueIds::new([10, 1, 2, 9].into(), pid));
        let ids: HashSet<String> = clients
            .iter()
            .flat_map(|ids| (0..10_000).map(|_| ids.next(1_700_000_000_000).to_string()))
            .collect();
        assert_eq!(ids.len(), 40_000);
    }

    #[test]
    fn an_id_has_upstreams_parts() {
        let ids = UniqueIds::new([127, 0, 0, 1].into(), 0x1_c602);
        let (first, second) = (ids.next(0x1234), ids.next(0x1235));
        assert_eq!(first.len(), 32);
        assert_eq!(&first[..12], "7F000001C602");
        assert_eq!((&first[20..], &second[20..]), ("000012340000", "000012350001"));
        assert_eq!(first[12..20], second[12..20]);
    }
}
