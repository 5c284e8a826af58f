use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn version(counter: i64) -> DataVersion {
    DataVersion { counter, timestamp: 1_700_000_000_000, state_version: 0 }
}

const fn queues(count: i32) -> Queues {
    Queues { read: count, write: count, perm: 6, sys_flag: 0 }
}

const fn address<'a>(name: &'a str, id: i64, addr: &'a str) -> Address<'a> {
    Address { cluster: "C", name, id, addr }
}

struct Bench {
    table: RouteTable,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self { table: RouteTable::default(), now: crate::clock::instant() }
    }

    fn register(
        &mut self,
        address: Address<'_>,
        peer: u64,
        counter: i64,
        topics: &[(&str, i32)],
    ) -> Option<Master> {
        let topics =
            topics.iter().map(|(name, count)| ((*name).to_owned(), queues(*count))).collect();
        let registration = Registration {
            address,
            ha_addr: "h:1",
            silence_max: None,
            topics: Some((version(counter), topics)),
        };
        self.table.register(registration, Peer(peer), self.now).unwrap()
    }

    #[track_caller]
    fn check_route(&self, topic: &str, want: &[(&str, i32)]) {
        let got: Vec<_> = self.table.route(topic).map_or_else(Vec::new, |route| {
            route.queues.iter().map(|(name, queues)| (*name, queues.write)).collect()
        });
        assert_eq!(got, want, "route of {topic}");
        let entries: usize = self.table.topics.values().map(BTreeMap::len).sum();
        assert_eq!(self.table.entries, entries);
        assert!(self.table.topics.values().all(|brokers| !brokers.is_empty()));
    }

    fn topics(&self) -> Vec<&str> {
        self.table.topics().collect()
    }
}

#[test]
fn a_registered_topic_has_a_route() {
    let mut bench = Bench::new();
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 4)]);
    bench.check_route("T", &[("a", 4)]);
    bench.check_route("U", &[]);
    let route = bench.table.route("T").unwrap();
    assert_eq!(route.brokers.len(), 1);
    assert_eq!(route.brokers[0].cluster, "C");
    assert_eq!(route.brokers[0].addrs, &BTreeMap::from([(0, "h:1".to_owned())]));
}

#[test]
fn several_brokers_of_a_cluster_share_a_topic() {
    let mut bench = Bench::new();
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 4), ("A", 1)]);
    bench.register(address("b", 0, "h:2"), 2, 1, &[("T", 8)]);
    bench.check_route("T", &[("a", 4), ("b", 8)]);
    assert_eq!(bench.table.topics_of_cluster("C").collect::<Vec<_>>(), ["A", "T"]);
    assert_eq!(bench.table.topics_of_cluster("D").count(), 0);
    assert_eq!(bench.table.clusters()["C"].len(), 2);
    bench.table.connection_closed(Peer(1));
    bench.check_route("T", &[("b", 8)]);
    assert_eq!(bench.topics(), ["T"]);
}

#[test]
fn topics_change_only_with_the_data_version() {
    let mut bench = Bench::new();
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 4)]);
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 9), ("U", 1)]);
    bench.check_route("T", &[("a", 4)]);
    bench.check_route("U", &[]);
    bench.register(address("a", 0, "h:1"), 1, 2, &[("U", 1)]);
    bench.check_route("U", &[("a", 1)]);
    // A registration that lists only what changed keeps the rest.
    bench.check_route("T", &[("a", 4)]);
}

#[test]
fn a_new_broker_id_brings_its_topics_whatever_the_version() {
    let mut bench = Bench::new();
    bench.register(address("a", 0, "h:1"), 1, 7, &[("T", 4)]);
    bench.table.unregister(&address("a", 0, "h:1"));
    bench.check_route("T", &[]);
    bench.register(address("a", 0, "h:1"), 1, 7, &[("T", 4)]);
    bench.check_route("T", &[("a", 4)]);
}

#[test]
fn a_slave_adds_its_address_but_no_topics_and_learns_its_master() {
    let mut bench = Bench::new();
    assert_eq!(bench.register(address("a", 1, "h:2"), 2, 1, &[("S", 4)]), None);
    assert!(bench.topics().is_empty());
    assert_eq!(bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 4)]), None);
    let master = bench.register(address("a", 1, "h:2"), 2, 1, &[("S", 4)]);
    assert_eq!(master, Some(Master { addr: "h:1".into(), ha_addr: "h:1".into() }));
    assert_eq!(bench.topics(), ["T"]);
    assert_eq!(bench.table.broker("a").unwrap().addrs.len(), 2);
    // The master goes: the slave keeps the name and its queues, so consumers can still read.
    bench.table.unregister(&address("a", 0, "h:1"));
    bench.check_route("T", &[("a", 4)]);
    bench.table.unregister(&address("a", 1, "h:2"));
    assert!(bench.topics().is_empty());
    assert!(bench.table.clusters().is_empty());
}

#[test]
fn an_address_that_changes_its_id_leaves_the_old_one() {
    let mut bench = Bench::new();
    bench.register(address("a", 1, "h:1"), 1, 1, &[]);
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 1)]);
    assert_eq!(bench.table.broker("a").unwrap().addrs, &BTreeMap::from([(0, "h:1".to_owned())]));
}

#[test]
fn a_replaced_address_does_not_take_its_successor_with_it() {
    let mut bench = Bench::new();
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 4)]);
    bench.register(address("a", 0, "h:2"), 2, 1, &[("T", 4)]);
    assert_eq!(bench.table.connection_closed(Peer(1)), ["h:1"]);
    bench.check_route("T", &[("a", 4)]);
}

#[test]
fn a_broker_that_reconnected_survives_the_end_of_its_old_connection() {
    let mut bench = Bench::new();
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 4)]);
    bench.register(address("a", 0, "h:1"), 2, 1, &[("T", 4)]);
    assert!(bench.table.connection_closed(Peer(1)).is_empty());
    bench.check_route("T", &[("a", 4)]);
    assert_eq!(bench.table.connection_closed(Peer(2)), ["h:1"]);
    bench.check_route("T", &[]);
}

#[test]
fn silent_brokers_expire_after_their_time() {
    let mut bench = Bench::new();
    let start = bench.now;
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 4)]);
    let registration = Registration {
        address: address("b", 0, "h:2"),
        ha_addr: "",
        silence_max: Some(10 * SECOND),
        topics: Some((version(1), vec![("T".into(), queues(1))])),
    };
    bench.table.register(registration, Peer(2), start).unwrap();
    assert!(bench.table.expire(start + 10 * SECOND).is_empty());
    assert_eq!(bench.table.expire(start + 11 * SECOND), ["h:2"]);
    bench.check_route("T", &[("a", 4)]);
    bench.table.heartbeat("h:1", start + 100 * SECOND);
    assert!(bench.table.expire(start + 220 * SECOND).is_empty());
    assert_eq!(bench.table.expire(start + 221 * SECOND), ["h:1"]);
    bench.check_route("T", &[]);
}

#[test]
fn an_unchanged_version_is_a_sign_of_life() {
    let mut bench = Bench::new();
    let start = bench.now;
    bench.register(address("a", 0, "h:1"), 1, 3, &[("T", 4)]);
    let later = start + 100 * SECOND;
    assert_eq!(bench.table.query_version("h:9", Some(version(3)), later), None);
    assert_eq!(bench.table.query_version("h:1", Some(version(4)), later), Some(version(3)));
    assert_eq!(bench.table.expire(start + 121 * SECOND), ["h:1"]);
    bench.register(address("a", 0, "h:1"), 1, 3, &[("T", 4)]);
    assert_eq!(bench.table.query_version("h:1", Some(version(3)), later), Some(version(3)));
    assert!(bench.table.expire(start + 121 * SECOND).is_empty());
}

#[test]
fn write_permission_is_wiped_and_given_back() {
    let mut bench = Bench::new();
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 4), ("U", 4)]);
    bench.register(address("b", 0, "h:2"), 2, 1, &[("T", 4)]);
    assert_eq!(bench.table.wipe_write_perm("a"), 2);
    assert_eq!(bench.table.wipe_write_perm("nobody"), 0);
    let perms: Vec<_> =
        bench.table.route("T").unwrap().queues.iter().map(|(_, queues)| queues.perm).collect();
    assert_eq!(perms, [4, 6]);
    assert_eq!(bench.table.add_write_perm("a"), 2);
    assert_eq!(bench.table.route("T").unwrap().queues[0].1.perm, 6);
}

#[test]
fn topics_are_deleted_everywhere_or_in_one_cluster() {
    let mut bench = Bench::new();
    let other = Address { cluster: "D", name: "b", id: 0, addr: "h:2" };
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 4), ("U", 4)]);
    bench.register(other, 2, 1, &[("T", 8)]);
    bench.table.delete_topic("T", Some("C"));
    bench.check_route("T", &[("b", 8)]);
    bench.table.delete_topic("T", Some("nowhere"));
    bench.check_route("T", &[("b", 8)]);
    bench.table.delete_topic("T", None);
    bench.check_route("T", &[]);
    bench.check_route("U", &[("a", 4)]);
    // The broker's next registration with the same version does not bring it back.
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 4), ("U", 4)]);
    bench.check_route("T", &[]);
}

#[test]
fn a_topic_can_be_added_on_known_brokers() {
    let mut bench = Bench::new();
    bench.register(address("a", 0, "h:1"), 1, 1, &[]);
    let added = vec![("a".to_owned(), queues(2)), ("unknown".to_owned(), queues(2))];
    assert!(bench.table.add_topic("T", added.clone()));
    bench.check_route("T", &[("a", 2)]);
    assert!(!bench.table.add_topic("../x", added));
    assert_eq!(bench.topics(), ["T"]);
}

#[test]
fn a_bad_topic_name_costs_only_that_topic() {
    let mut bench = Bench::new();
    let long = "x".repeat(128);
    bench.register(address("a", 0, "h:1"), 1, 1, &[("../x", 4), ("", 1), (&long, 1), ("T", 4)]);
    assert_eq!(bench.topics(), ["T"]);
}

#[test]
fn usual_names_of_brokers_are_taken() {
    for name in
        ["broker-a", "node1.example.com", "b_0", "caf\u{e9}", "broker a", "..a", &"x".repeat(255)]
    {
        assert_eq!(check_name(name), Ok(()), "{name}");
    }
}

#[test]
fn unusable_names_are_refused() {
    let mut bench = Bench::new();
    let long = "x".repeat(BROKER_TEXT_LEN_MAX + 1);
    let in_cluster = |cluster: &'static str| Address { cluster, ..address("a", 0, "h:1") };
    for (bad, field, rule) in [
        (address("", 0, "h:1"), "brokerName", BadText::Blank),
        (address("a", 0, " "), "brokerAddr", BadText::Blank),
        (address("a", -1, "h:1"), "brokerId", BadText::Negative),
        (address("a\n", 0, "h:1"), "brokerName", BadText::Control),
        (address("a\u{85}", 0, "h:1"), "brokerName", BadText::Control),
        (address(&long, 0, "h:1"), "brokerName", BadText::TooLong),
        (address("../a", 0, "h:1"), "brokerName", BadText::Path),
        (address("..", 0, "h:1"), "brokerName", BadText::Path),
        (address("a\\b", 0, "h:1"), "brokerName", BadText::Path),
        (address("/tmp/a", 0, "h:1"), "brokerName", BadText::Path),
        (in_cluster(" "), "clusterName", BadText::Blank),
        (in_cluster("a/b"), "clusterName", BadText::Path),
    ] {
        let registration =
            Registration { address: bad, ha_addr: "", silence_max: None, topics: None };
        let got = bench.table.register(registration, Peer(1), bench.now);
        assert_eq!(got, Err(RegisterError::Field(field, rule)));
    }
    assert!(bench.table.clusters().is_empty());
}

#[test]
fn a_broker_that_moves_to_another_cluster_leaves_the_first() {
    let mut bench = Bench::new();
    bench.register(address("a", 0, "h:1"), 1, 1, &[("T", 4)]);
    bench.register(Address { cluster: "D", ..address("a", 0, "h:1") }, 1, 1, &[]);
    assert_eq!(bench.table.clusters().keys().collect::<Vec<_>>(), ["D"]);
    bench.check_route("T", &[("a", 4)]);
}

#[test]
fn unit_flags_select_topics() {
    let mut bench = Bench::new();
    let flagged = |flags| Queues { sys_flag: flags, ..queues(1) };
    let topics = (0..4).map(|flags| (format!("T{flags}"), flagged(flags))).collect();
    let registration = Registration {
        address: address("a", 0, "h:1"),
        ha_addr: "",
        silence_max: None,
        topics: Some((version(1), topics)),
    };
    bench.table.register(registration, Peer(1), bench.now).unwrap();
    let list = |which| bench.table.unit_topics(which).collect::<Vec<_>>();
    assert_eq!(list(UnitTopics::Unit), ["T1", "T3"]);
    assert_eq!(list(UnitTopics::UnitSub), ["T2", "T3"]);
    assert_eq!(list(UnitTopics::UnitSubNotUnit), ["T2"]);
}
