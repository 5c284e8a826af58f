//! Message ids that a producer makes by itself: property `UNIQ_KEY`.
//!
//! Time and counter of an id together only rise, also when the clock goes back, so that a client
//! never makes one twice; clients differ by a random number.
//!
//! Source: Apache RocketMQ 4.9.8, `MessageClientIDSetter`. Upstream counts the milliseconds from
//! the start of the month in local time, this crate in UTC: only the decoded time of an id depends
//! on it, not that it is unique.

use std::{
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::atomic::{AtomicI64, Ordering},
};

use ringmq_protocol::message_id::{Hex, UniqueId};

use crate::clock;

/// Ids that one millisecond has; more than these are borrowed from the next one.
const IDS_PER_MS: i64 = 1 << 16;

/// Makes the ids of one client.
#[derive(Debug)]
pub(crate) struct UniqueIds {
    ip: IpAddr,
    process_id: u16,
    salt: i32,
    /// The last id's time in milliseconds since 1970, times [`IDS_PER_MS`], plus its counter.
    last: AtomicI64,
}

impl UniqueIds {
    pub(crate) fn new(ip: IpAddr, process_id: u32) -> Self {
        let [_, _, high, low] = process_id.to_be_bytes();
        let [a, b, c, d, ..] = random().to_be_bytes();
        Self {
            ip,
            process_id: u16::from_be_bytes([high, low]),
            salt: i32::from_be_bytes([a, b, c, d]),
            last: AtomicI64::new(0),
        }
    }

    /// The next id, at a time in milliseconds since 1970.
    pub(crate) fn next(&self, now_ms: i64) -> Hex {
        let now = now_ms.saturating_mul(IDS_PER_MS);
        let rise = |last: i64| Some(now.max(last.wrapping_add(1)));
        let last = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rise);
        let next = now.max(last.unwrap_or_else(|last| last).wrapping_add(1));
        let ms = next.div_euclid(IDS_PER_MS);
        let [.., high, low] = next.to_be_bytes();
        let month_ms = clock::ms_into_month(ms);
        // The month is part of the number that tells clients apart, since times repeat every month.
        let month = i32::try_from((ms - month_ms) / 86_400_000).unwrap_or_default();
        // A month has fewer milliseconds than `i32` can count twice over, but more than once.
        let [.., a, b, c, d] = month_ms.to_be_bytes();
        UniqueId {
            ip: self.ip,
            process_id: self.process_id,
            salt: self.salt.wrapping_add(month),
            month_ms: i32::from_be_bytes([a, b, c, d]),
            counter: u16::from_be_bytes([high, low]),
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
    use std::{collections::HashSet, process::Command};

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
    fn ids_differ_while_the_clock_goes_back_and_forth() {
        let ids = UniqueIds::new([10, 1, 2, 9].into(), 1);
        let times = (0..300_000).map(|n| 1_700_000_000_000 + (n % 3) - (n / 100_000) * 2);
        let all: HashSet<String> = times.map(|ms| ids.next(ms).to_string()).collect();
        assert_eq!(all.len(), 300_000, "more than one millisecond has, and at earlier times");
    }

    #[test]
    fn a_month_later_the_same_millisecond_makes_other_ids() {
        let ids = UniqueIds::new([10, 1, 2, 9].into(), 1);
        let (january, february) = (1_704_067_200_000, 1_706_745_600_000);
        assert_eq!(clock::ms_into_month(january), clock::ms_into_month(february));
        assert_ne!(*ids.next(january), *ids.next(february));
    }

    #[test]
    fn ids_are_those_of_upstream() {
        let all: serde_json::Value =
            serde_json::from_str(include_str!("../tests/data/allocate-vectors.json")).unwrap();
        let vectors = all["uniqKey"].as_array().unwrap();
        for vector in vectors {
            let number = |name: &str| vector[name].as_i64().unwrap();
            let id = UniqueId {
                ip: vector["ip"].as_str().unwrap().parse().unwrap(),
                process_id: u16::try_from(number("pid") & 0xffff).unwrap(),
                salt: i32::try_from(number("loaderHash")).unwrap(),
                month_ms: i32::try_from(number("millisSinceMonthStart")).unwrap(),
                counter: u16::try_from(number("counter")).unwrap(),
            };
            assert_eq!(&*id.to_hex(), vector["key"].as_str().unwrap());
        }
        let vectors = (vectors, all["offsetMessageId"].as_array().unwrap());
        for vector in vectors.1 {
            let id = vector["id"].as_str().unwrap();
            let parsed = ringmq_protocol::message_id::OffsetMessageId::parse(id).unwrap();
            assert_eq!(parsed.log_offset, vector["commitLogOffset"].as_i64().unwrap());
            assert_eq!(parsed.host.ip().to_string(), vector["ip"].as_str().unwrap());
        }
        assert_eq!((vectors.0.len(), vectors.1.len()), (4, 4));
    }

    #[test]
    fn an_id_has_upstreams_parts() {
        let ids = UniqueIds::new([127, 0, 0, 1].into(), 0x1_c602);
        let (first, second) = (ids.next(0x1234), ids.next(0x1234));
        assert_eq!(first.len(), 32);
        assert_eq!(&first[..12], "7F000001C602");
        assert_eq!((&first[20..], &second[20..]), ("000012340000", "000012340001"));
        assert_eq!(first[12..20], second[12..20]);
        assert_eq!(&ids.next(0x1235)[20..], "000012350000");
    }

    /// Where the next test's children write their ids: a file, and how many.
    const CHILD_FILE: &str = "RINGMQ_TEST_IDS_FILE";
    const CHILD_COUNT: &str = "RINGMQ_TEST_IDS_COUNT";

    /// A child of the next test; otherwise nothing.
    #[test]
    fn child() {
        let Ok(path) = std::env::var(CHILD_FILE) else { return };
        let count: usize = std::env::var(CHILD_COUNT).unwrap().parse().unwrap();
        // All children have the same address, as processes of one machine do.
        let ids = UniqueIds::new([127, 0, 0, 1].into(), std::process::id());
        let all: Vec<u8> =
            (0..count).flat_map(|_| ids.next(clock::epoch_ms()).as_bytes().to_vec()).collect();
        std::fs::write(path, all).unwrap();
    }

    /// `RINGMQ_TEST_IDS_COUNT=2500000 cargo test --release -p ringmq-client unique` makes 10 million.
    #[test]
    fn ids_of_four_processes_differ() {
        let count = std::env::var(CHILD_COUNT).unwrap_or_else(|_| "25000".into());
        let paths: Vec<_> = (0..4)
            .map(|n| std::env::temp_dir().join(format!("ringmq-ids-{}-{n}", std::process::id())))
            .collect();
        let children: Vec<_> = paths
            .iter()
            .map(|path| {
                let mut child = Command::new(std::env::current_exe().unwrap());
                child.args(["--exact", "unique::tests::child"]);
                child.env(CHILD_FILE, path).env(CHILD_COUNT, &count).spawn().unwrap()
            })
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        let texts: Vec<_> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
        paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        let mut ids: Vec<_> = texts.iter().flat_map(|text| text.chunks(32)).collect();
        assert_eq!(ids.len(), 4 * count.parse::<usize>().unwrap());
        ids.sort_unstable();
        assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "two are alike");
    }
}
