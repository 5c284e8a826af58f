use std::time::Duration;

use super::*;
use crate::control::{
    NewTopic, SubscriptionView,
    members::{Member, Terms},
    testing,
};

const fn conn(slot: u32) -> ConnId {
    ConnId { thread: 0, slot, generation: 1 }
}

fn enter(broker: &mut Broker, slot: u32, group: &str) {
    let member = Member {
        client_id: "c".into(),
        peer: "127.0.0.1:9".parse().unwrap(),
        language: ringmq_protocol::command::Language::Java,
        version: 409,
        seen: crate::clock::instant(),
        seen_ms: 0,
    };
    let subscription = SubscriptionView {
        topic: "T".into(),
        sub_version: 1,
        expression_type: "TAG".into(),
        expression: "*".into(),
        tags: Box::default(),
        codes: Box::default(),
    };
    let entered = broker.members.heartbeat_consumer(
        group,
        conn(slot),
        member,
        Terms::default(),
        vec![subscription],
    );
    entered.unwrap();
}

fn create(broker: &mut Broker, topic: &str) {
    let how = NewTopic::OfGroup { queue_nums: 1, unit_mode: false };
    broker.topics.create(topic, &how, 7).unwrap();
}

#[test]
fn what_was_stored_is_there_after_a_restart() {
    let mut broker = testing::broker();
    create(&mut broker, "T");
    create(&mut broker, "U");
    broker.groups.find_or_create("G", 8).unwrap();
    let facts = broker.take_facts();
    let stored = facts.iter().map(|fact| (&*fact.key, fact.value.as_deref().unwrap()));
    let again = Broker::restore(testing::broker_config(), stored, 100).unwrap();
    assert_eq!(again.topics.all(), broker.topics.all());
    assert_eq!(again.groups.all(), broker.groups.all());
    // One further than before, so that name servers take the topics again.
    assert_eq!(again.topics.version(), broker.topics.version().next(100));
    assert!(again.views().group("G").unwrap().config.is_some());
}

#[test]
fn damaged_facts_stop_the_start() {
    let stored: [(&[u8], &[u8]); 1] = [(b"control/topic/T", &[1, 2])];
    let error = Broker::restore(testing::broker_config(), stored, 1).unwrap_err();
    assert_eq!(error.to_string(), "the store's entry control/topic/T is damaged");
    let stored: [(&[u8], &[u8]); 1] = [(b"control/topic/T", &[9])];
    let error = Broker::restore(testing::broker_config(), stored, 1).unwrap_err();
    assert!(error.to_string().contains("start a newer ringmq"));
}

#[test]
fn a_turn_without_changes_publishes_nothing() {
    let mut broker = testing::broker();
    assert!(broker.take_facts().is_empty());
    let outcome = broker.decide(true);
    assert!(outcome.catalog.is_none() && outcome.groups.is_none());
    assert!(outcome.topics_updated.is_none() && !broker.has_notices());
}

#[test]
fn a_turn_publishes_topics_and_groups_once() {
    let mut broker = testing::broker();
    create(&mut broker, "T");
    create(&mut broker, "U");
    broker.groups.find_or_create("G", 8).unwrap();
    for slot in 0..100 {
        enter(&mut broker, slot, "G");
    }
    assert_eq!(broker.take_facts().len(), 5);
    let outcome = broker.decide(true);
    assert!(outcome.catalog.unwrap().topic("U").is_some());
    assert_eq!(outcome.topics_updated.unwrap().len(), 2);
    let groups = outcome.groups.unwrap();
    let view = groups.group("G").unwrap();
    assert!(view.online && view.config.is_some() && view.subscription("T").is_some());
    assert!(broker.has_notices());
    assert_eq!(broker.take_notices()["G"].len(), 100);
    assert!(broker.take_notices().is_empty());
}

#[test]
fn facts_that_fail_leave_no_trace_of_the_turn() {
    let mut broker = testing::broker();
    create(&mut broker, "T");
    broker.take_facts();
    broker.decide(true);
    let version = broker.topics.version();
    create(&mut broker, "U");
    broker.groups.find_or_create("G", 8).unwrap();
    enter(&mut broker, 1, "G");
    broker.take_facts();
    let outcome = broker.decide(false);
    assert!(outcome.catalog.is_none() && outcome.topics_updated.is_none());
    assert!(broker.topics.get("T").is_some() && broker.topics.get("U").is_none());
    assert_eq!(broker.topics.version(), version);
    // The member is there, its group's configuration is not.
    let groups = outcome.groups.unwrap();
    assert!(groups.group("G").is_some_and(|view| view.online && view.config.is_none()));
    // A later turn does not bring back what was undone.
    create(&mut broker, "V");
    let facts = broker.take_facts();
    assert_eq!(facts.len(), 2);
    broker.decide(true);
    assert!(broker.topics.get("U").is_none());
}

#[test]
fn groups_and_brokers_can_forbid_notices() {
    let mut broker = testing::broker();
    broker.groups.find_or_create("G", 8).unwrap();
    let mut config = (**broker.groups.all().get("G").unwrap()).clone();
    config.notify_consumer_ids_changed_enable = false;
    broker.groups.put(config, 9).unwrap();
    enter(&mut broker, 1, "G");
    enter(&mut broker, 1, "H");
    broker.take_facts();
    broker.decide(true);
    let notices = broker.take_notices();
    assert_eq!(notices.keys().map(|name| name.to_string()).collect::<Vec<_>>(), ["H"]);
    let mut quiet = testing::broker_config();
    quiet.notify_consumer_ids_changed = false;
    let mut broker = Broker::restore(quiet, [], 1).unwrap();
    enter(&mut broker, 1, "H");
    broker.decide(true);
    assert!(broker.take_notices().is_empty());
}

#[test]
fn a_group_goes_offline_with_its_last_member() {
    let mut broker = testing::broker();
    broker.groups.find_or_create("G", 8).unwrap();
    enter(&mut broker, 1, "G");
    enter(&mut broker, 1, "unconfigured");
    broker.take_facts();
    broker.decide(true);
    let late = crate::clock::instant() + Duration::from_secs(200);
    assert_eq!(broker.members.expire(late).len(), 1);
    let groups = broker.decide(true).groups.unwrap();
    assert!(!groups.group("G").unwrap().online);
    assert!(groups.group("unconfigured").is_none());
}
