use super::*;
use crate::control::testing::broker_config;

fn template(queue_nums: i32) -> NewTopic {
    NewTopic::FromTemplate { default_topic: AUTO_CREATE_TOPIC.into(), queue_nums, unit_mode: false }
}

#[track_caller]
fn check_shape(topics: &Topics, name: &str, queues: u32, perm: u32) {
    let topic = topics.get(name).unwrap_or_else(|| panic!("no topic {name}"));
    let got = (topic.read_queue_nums, topic.write_queue_nums, topic.perm);
    assert_eq!(got, (queues, queues, perm), "{name}");
}

#[test]
fn a_broker_starts_with_the_topics_of_upstream() {
    let topics = Topics::new(&broker_config());
    for (name, queues, perm) in [
        ("TBW102", 8, 7),
        ("SELF_TEST_TOPIC", 1, 6),
        ("BenchmarkTest", 1024, 6),
        ("DefaultCluster", 16, 7),
        ("broker-a", 1, 7),
        ("OFFSET_MOVED_EVENT", 1, 6),
        ("SCHEDULE_TOPIC_XXXX", 18, 6),
        ("DefaultCluster_REPLY_TOPIC", 1, 6),
    ] {
        check_shape(&topics, name, queues, perm);
        assert!(topics.is_system(name), "{name}");
    }
    assert_eq!(topics.all().len(), 8);
}

#[test]
fn switches_shape_the_system_topics() {
    let mut config = broker_config();
    config.auto_create_topic = false;
    config.cluster_topic = false;
    config.broker_topic = false;
    config.trace_topic = true;
    let topics = Topics::new(&config);
    assert_eq!(topics.get("TBW102"), None);
    check_shape(&topics, "DefaultCluster", 16, 1);
    check_shape(&topics, "broker-a", 1, 1);
    check_shape(&topics, "RMQ_SYS_TRACE_TOPIC", 1, 6);
}

#[test]
fn a_send_creates_the_smaller_of_its_and_the_templates_queue_count() {
    let mut topics = Topics::new(&broker_config());
    for (asked, want) in [(1, 1), (4, 4), (8, 8), (100, 8)] {
        let name = format!("T{asked}");
        topics.create(&name, &template(asked), 5).unwrap();
        check_shape(&topics, &name, want, 6);
    }
    for asked in [0, -3, i32::MIN] {
        assert_eq!(topics.create("T", &template(asked), 5), Err(CreateTopicError::NoQueues));
    }
    topics.put(plain("Dry", 0, READ_WRITE | PERM_INHERIT), 5).unwrap();
    let how =
        NewTopic::FromTemplate { default_topic: "Dry".into(), queue_nums: 4, unit_mode: false };
    assert_eq!(topics.create("T", &how, 5), Err(CreateTopicError::NoQueues));
    assert_eq!(topics.get("T"), None);
}

#[test]
fn only_templates_with_the_inherit_bit_make_topics() {
    let mut topics = Topics::new(&broker_config());
    let from = |default_topic: &str| NewTopic::FromTemplate {
        default_topic: default_topic.into(),
        queue_nums: 4,
        unit_mode: false,
    };
    let refused = Err(CreateTopicError::NoTemplate);
    assert_eq!(topics.create("T", &from("BenchmarkTest"), 5), refused);
    assert_eq!(topics.create("T", &from("nothing"), 5), refused);
    topics.create("T", &from("broker-a"), 5).unwrap();
    check_shape(&topics, "T", 1, 6);
}

#[test]
fn without_auto_creation_the_usual_template_makes_nothing() {
    let mut config = broker_config();
    config.auto_create_topic = false;
    let mut topics = Topics::new(&config);
    // The store may still have it from a time when it was on.
    topics.restore(plain(AUTO_CREATE_TOPIC, 8, 7));
    assert_eq!(topics.create("T", &template(4), 5), Err(CreateTopicError::NoTemplate));
}

#[test]
fn names_that_could_be_paths_or_do_not_fit_are_refused() {
    let mut topics = Topics::new(&broker_config());
    let of_group = NewTopic::OfGroup { queue_nums: 1, unit_mode: false };
    let long = "x".repeat(128);
    for name in ["../x", "", " ", "a/b", "a.b", "t\u{e9}", &long] {
        for how in [&template(4), &of_group] {
            let got = topics.create(name, how, 5);
            assert!(matches!(got, Err(CreateTopicError::Name(_))), "{name}: {got:?}");
        }
    }
    assert_eq!(topics.all().len(), 8);
    topics.create(&"x".repeat(127), &template(4), 5).unwrap();
}

#[test]
fn an_existing_topic_is_returned_unchanged() {
    let mut topics = Topics::new(&broker_config());
    topics.create("T", &template(4), 5).unwrap();
    let version = topics.version();
    let again = topics.create("T", &template(8), 6).unwrap();
    assert_eq!(again.write_queue_nums, 4);
    assert_eq!(topics.version(), version);
}

#[test]
fn group_topics_have_their_own_queue_count() {
    let mut topics = Topics::new(&broker_config());
    let how = NewTopic::OfGroup { queue_nums: 3, unit_mode: true };
    let topic = topics.create("%RETRY%G", &how, 5).unwrap();
    check_shape(&topics, "%RETRY%G", 3, 6);
    assert_eq!(topic.sys_flag, FLAG_UNIT_SUB);
}

#[test]
fn unit_mode_marks_topics_and_retry_topics_differently() {
    let mut topics = Topics::new(&broker_config());
    let how = NewTopic::FromTemplate {
        default_topic: AUTO_CREATE_TOPIC.into(),
        queue_nums: 4,
        unit_mode: true,
    };
    assert_eq!(topics.create("T", &how, 5).unwrap().sys_flag, FLAG_UNIT);
    assert_eq!(topics.create("%RETRY%G", &how, 5).unwrap().sys_flag, FLAG_UNIT_SUB);
}

#[test]
fn every_change_raises_the_version_and_becomes_a_fact() {
    let mut topics = Topics::new(&broker_config());
    topics.start_version(Some(Version { counter: 6, changed_ms: 1 }), 2);
    assert_eq!(topics.version(), Version { counter: 7, changed_ms: 2 });
    assert!(topics.take_changes().is_none());
    topics.create("T", &template(4), 10).unwrap();
    topics.create("U", &template(4), 11).unwrap();
    topics.put(plain("T", 9, 6), 12).unwrap();
    assert_eq!(topics.version(), Version { counter: 10, changed_ms: 12 });
    let changes = topics.take_changes().unwrap();
    let want = [
        topic_fact("T", Some(&plain("T", 9, 6))),
        topic_fact("U", Some(&plain("U", 4, 6))),
        topics_version_fact(topics.version()),
    ];
    assert_eq!(changes.facts, want);
    assert_eq!(changes.updated.len(), 2);
    assert!(topics.take_changes().is_none());
}

#[test]
fn a_copy_from_before_a_change_does_not_see_it() {
    let mut topics = Topics::new(&broker_config());
    let before = topics.clone();
    topics.create("T", &template(4), 5).unwrap();
    assert_eq!(before.get("T"), None);
    assert!(topics.get("T").is_some());
}

#[test]
fn stored_topics_do_not_replace_system_topics() {
    let mut topics = Topics::new(&broker_config());
    topics.restore(plain("SCHEDULE_TOPIC_XXXX", 1, 0));
    topics.restore(plain("T", 3, 4));
    check_shape(&topics, "SCHEDULE_TOPIC_XXXX", 18, 6);
    check_shape(&topics, "T", 3, 4);
}
