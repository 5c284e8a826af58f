use super::*;

const fn conn(slot: u32) -> ConnId {
    ConnId { thread: 0, slot, generation: 1 }
}

fn subscription(topic: &str, sub_version: i64) -> SubscriptionView {
    SubscriptionView {
        topic: topic.into(),
        sub_version,
        expression_type: "TAG".into(),
        expression: "*".into(),
        tags: Box::default(),
        codes: Box::default(),
    }
}

struct Bench {
    members: Members,
    start: Instant,
}

impl Bench {
    fn new() -> Self {
        Self { members: Members::default(), start: crate::clock::instant() }
    }

    fn member(&self, id: &str, at_s: u64) -> Member {
        Member {
            client_id: id.into(),
            peer: "127.0.0.1:9".parse().unwrap(),
            language: Language::Java,
            version: 409,
            seen: self.start + Duration::from_secs(at_s),
            seen_ms: 0,
        }
    }

    fn beat(&mut self, group: &str, slot: u32, at_s: u64, topics: &[(&str, i64)]) {
        let member = self.member(&format!("c{slot}"), at_s);
        let subscriptions =
            topics.iter().map(|(topic, version)| subscription(topic, *version)).collect();
        self.members
            .heartbeat_consumer(group, conn(slot), member, Terms::default(), subscriptions)
            .unwrap();
    }

    fn beat_producer(&mut self, group: &str, slot: u32, at_s: u64) {
        let member = self.member(&format!("c{slot}"), at_s);
        self.members.heartbeat_producer(group, conn(slot), member).unwrap();
    }

    /// Takes what changed: groups with a new view, groups to notify.
    #[track_caller]
    fn check_changes(&mut self, groups: &[&str], notify: &[&str]) {
        let changes = self.members.take_changes();
        let names =
            |set: &BTreeSet<Arc<str>>| set.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(
            (names(&changes.groups), names(&changes.notify)),
            (
                groups.iter().map(ToString::to_string).collect(),
                notify.iter().map(ToString::to_string).collect()
            )
        );
        self.check_invariants();
    }

    #[track_caller]
    fn check_invariants(&self) {
        let members = &self.members;
        let mut count = 0;
        for (name, info) in &members.consumers {
            assert!(!info.members.is_empty(), "{name} is empty");
            count += info.members.len();
            for conn in info.members.keys() {
                assert!(members.by_conn[conn].consumer.contains(name));
            }
        }
        for (name, list) in &members.producers {
            assert!(!list.is_empty(), "{name} is empty");
            count += list.len();
            for conn in list.keys() {
                assert!(members.by_conn[conn].producer.contains(name));
            }
        }
        assert_eq!(members.count, count);
        assert_eq!(members.by_conn.values().map(GroupsOf::count).sum::<usize>(), count);
    }

    fn ids(&self, group: &str) -> Vec<String> {
        let Some(info) = self.members.consumers(group) else { return Vec::new() };
        let mut ids: Vec<_> = info.members.values().map(|m| m.client_id.to_string()).collect();
        ids.sort();
        ids
    }
}

#[test]
fn every_new_member_is_announced_and_listed() {
    let mut bench = Bench::new();
    bench.beat("G", 1, 0, &[("T", 1)]);
    bench.check_changes(&["G"], &["G"]);
    bench.beat("G", 2, 0, &[("T", 1)]);
    bench.check_changes(&[], &["G"]);
    assert_eq!(bench.ids("G"), ["c1", "c2"]);
}

#[test]
fn a_renewal_changes_nothing() {
    let mut bench = Bench::new();
    bench.beat("G", 1, 0, &[("T", 1)]);
    bench.members.take_changes();
    bench.beat("G", 1, 30, &[("T", 1)]);
    bench.check_changes(&[], &[]);
}

#[test]
fn a_greater_version_replaces_without_a_notice() {
    let mut bench = Bench::new();
    bench.beat("G", 1, 0, &[("T", 5)]);
    bench.members.take_changes();
    bench.beat("G", 1, 1, &[("T", 6)]);
    bench.check_changes(&["G"], &[]);
    bench.beat("G", 1, 2, &[("T", 4)]);
    bench.check_changes(&[], &[]);
    let version = bench.members.consumers("G").unwrap().subscriptions["T"].sub_version;
    assert_eq!(version, 6);
}

#[test]
fn topics_that_a_heartbeat_adds_or_omits_change_the_group() {
    let mut bench = Bench::new();
    bench.beat("G", 1, 0, &[("T", 1)]);
    bench.members.take_changes();
    bench.beat("G", 1, 1, &[("T", 1), ("U", 1)]);
    bench.check_changes(&["G"], &["G"]);
    bench.beat("G", 1, 2, &[("U", 1)]);
    bench.check_changes(&["G"], &["G"]);
    let topics: Vec<_> =
        bench.members.consumers("G").unwrap().subscriptions.keys().map(|t| t.to_string()).collect();
    assert_eq!(topics, ["U"]);
    bench.beat("G", 1, 3, &[("V", 1)]);
    bench.check_changes(&["G"], &["G"]);
}

#[test]
fn the_same_topic_twice_in_a_heartbeat_counts_once() {
    let mut bench = Bench::new();
    bench.beat("G", 1, 0, &[("T", 1), ("T", 3), ("T", 2)]);
    let info = bench.members.consumers("G").unwrap();
    assert_eq!((info.subscriptions.len(), info.subscriptions["T"].sub_version), (1, 3));
}

#[test]
fn another_client_id_on_a_connection_replaces_the_first_silently() {
    let mut bench = Bench::new();
    bench.beat("G", 1, 0, &[("T", 1)]);
    bench.members.take_changes();
    let member = bench.member("other", 1);
    bench
        .members
        .heartbeat_consumer("G", conn(1), member, Terms::default(), vec![subscription("T", 1)])
        .unwrap();
    bench.check_changes(&[], &[]);
    assert_eq!(bench.ids("G"), ["other"]);
}

#[test]
fn one_client_id_on_two_connections_is_listed_twice() {
    let mut bench = Bench::new();
    for slot in [1, 2] {
        let member = bench.member("same", 0);
        bench
            .members
            .heartbeat_consumer("G", conn(slot), member, Terms::default(), Vec::new())
            .unwrap();
    }
    assert_eq!(bench.ids("G"), ["same", "same"]);
}

#[test]
fn terms_of_the_latest_heartbeat_count() {
    let mut bench = Bench::new();
    bench.beat("G", 1, 0, &[]);
    bench.members.take_changes();
    let terms = Terms { message_model: MessageModel::Broadcasting, ..Terms::default() };
    let member = bench.member("c2", 0);
    bench.members.heartbeat_consumer("G", conn(2), member, terms, Vec::new()).unwrap();
    bench.check_changes(&["G"], &["G"]);
    assert_eq!(bench.members.consumers("G").unwrap().terms, terms);
}

#[test]
fn leaving_tells_the_others_and_the_last_one_takes_the_group_along() {
    let mut bench = Bench::new();
    bench.beat("G", 1, 0, &[("T", 1)]);
    bench.beat("G", 2, 0, &[("T", 1)]);
    bench.members.take_changes();
    bench.members.leave_consumer("G", conn(1));
    bench.check_changes(&[], &["G"]);
    bench.members.leave_consumer("G", conn(1));
    bench.members.leave_consumer("unknown", conn(1));
    bench.check_changes(&[], &[]);
    bench.members.leave_consumer("G", conn(2));
    bench.check_changes(&["G"], &["G"]);
    assert!(bench.members.consumers("G").is_none());
}

#[test]
fn a_closed_connection_leaves_all_its_groups() {
    let mut bench = Bench::new();
    bench.beat("G", 1, 0, &[("T", 1)]);
    bench.beat("G", 2, 0, &[("T", 1)]);
    bench.beat("H", 1, 0, &[("T", 1)]);
    bench.beat_producer("P", 1, 0);
    bench.members.take_changes();
    bench.members.closed(conn(1));
    bench.check_changes(&["H"], &["G", "H"]);
    assert_eq!(bench.ids("G"), ["c2"]);
    assert!(bench.members.producers("P").is_none());
    bench.members.closed(conn(1));
    bench.check_changes(&[], &[]);
}

#[test]
fn a_later_connection_in_the_same_slot_is_another_one() {
    let mut bench = Bench::new();
    bench.beat("G", 1, 0, &[("T", 1)]);
    let later = ConnId { generation: 2, ..conn(1) };
    bench.members.closed(later);
    assert_eq!(bench.ids("G"), ["c1"]);
}

#[test]
fn members_expire_120_seconds_after_their_last_heartbeat_without_a_notice() {
    let mut bench = Bench::new();
    let start = bench.start;
    bench.beat("G", 1, 0, &[("T", 1)]);
    bench.beat("G", 2, 10, &[("T", 1)]);
    bench.beat_producer("P", 1, 5);
    bench.members.take_changes();
    assert!(bench.members.expire(start + Duration::from_secs(120)).is_empty());
    assert_eq!(bench.members.expire(start + Duration::from_secs(121)), BTreeSet::from([conn(1)]));
    bench.check_changes(&[], &[]);
    assert_eq!(bench.ids("G"), ["c2"]);
    assert_eq!(bench.members.expire(start + Duration::from_secs(126)), BTreeSet::from([conn(1)]));
    assert_eq!(bench.members.expire(start + Duration::from_secs(131)), BTreeSet::from([conn(2)]));
    bench.check_changes(&["G"], &[]);
    assert!(bench.members.by_conn.is_empty());
}

#[test]
fn producers_are_members_by_connection_too() {
    let mut bench = Bench::new();
    bench.beat_producer("P", 1, 0);
    bench.beat_producer("P", 2, 0);
    bench.beat_producer("P", 2, 1);
    assert_eq!(bench.members.producers("P").unwrap().len(), 2);
    bench.members.leave_producer("P", conn(1));
    bench.members.leave_producer("P", conn(1));
    bench.members.leave_producer("Q", conn(1));
    bench.check_changes(&[], &[]);
    assert_eq!(bench.members.producer_groups().count(), 1);
}

#[test]
fn bounds_refuse_what_is_new_and_keep_what_is_there() {
    let mut bench = Bench::new();
    for group in 0..GROUPS_PER_CONNECTION_MAX {
        bench.beat_producer(&format!("P{group}"), 1, 0);
    }
    let member = bench.member("c1", 0);
    let got = bench.members.heartbeat_producer("more", conn(1), member.clone());
    assert_eq!(got, Err(Full));
    bench.beat_producer("P0", 1, 5);
    let many = (0..=SUBSCRIPTIONS_PER_GROUP_MAX)
        .map(|topic| subscription(&format!("T{topic}"), 1))
        .collect();
    let got = bench.members.heartbeat_consumer("G", conn(2), member, Terms::default(), many);
    assert_eq!(got, Err(Full));
    bench.check_changes(&[], &[]);
}
